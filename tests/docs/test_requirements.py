"""Rules and tests fit together, both ways, and the page says what the manifest says."""

from pathlib import Path

import pytest

from tools import requirements
from tools.compliance import PAGE, page
from tools.requirements import Chapter, Rule, faults, known_recipes, known_tests, load
from tools.steps import SetupError

A_TEST = "tests/docs/test_requirements.py::test_every_rule_fits_its_tests_and_every_test_its_rules"


def test_every_rule_fits_its_tests_and_every_test_its_rules() -> None:
    assert faults(load()) == []


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.compliance"


def test_the_page_hides_no_rule() -> None:
    text = page()
    for chapter in load():
        for rule in chapter.rules:
            assert f"| {rule.id} | " in text
            if rule.open:
                assert f"* **{rule.id}** " in text


def faults_of(rule: Rule) -> list[str]:
    return [fault for fault in faults((Chapter("c", "C", (rule,)),)) if "is marked" not in fault]


def test_a_rule_with_a_test_is_kept() -> None:
    rule = Rule("X1", "s", "r", tests=(A_TEST,))
    assert (rule.status, faults_of(rule)) == ("fulfilled", [])


def test_a_rule_without_a_test_must_be_declared_open() -> None:
    assert faults_of(Rule("X1", "s", "r")) == ["X1 has no test and is not declared open"]
    assert faults_of(Rule("X1", "s", "r", declined="for a reason")) != []
    assert faults_of(Rule("X1", "s", "r", open="all of it")) == []


def test_a_test_or_recipe_that_is_not_there_is_named() -> None:
    gone = Rule("X1", "s", "r", tests=("tests/test_x.py::test_gone",), recipes=("nobody",))
    first, second = faults_of(gone)
    assert "tests/test_x.py::test_gone, which does not exist" in first
    assert "the recipe nobody, which does not exist" in second


def test_a_rule_that_is_there_twice_is_named() -> None:
    rule = Rule("X1", "s", "r", tests=(A_TEST,))
    (fault,) = [f for f in faults((Chapter("c", "C", (rule, rule)),)) if "twice" in f]
    assert fault == "the rule X1 is there twice"


def test_a_test_marked_with_an_unknown_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = {A_TEST: frozenset({"X1", "X2"})}
    monkeypatch.setattr(requirements, "known_tests", lambda: tests)
    assert faults((Chapter("c", "C", (Rule("X1", "s", "r"),)),)) == [
        f"{A_TEST} is marked with X2, which no rule is"
    ]


def test_a_mark_makes_its_test_a_proof_of_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "known_tests", lambda: {A_TEST: frozenset({"X1"})})
    chapters = (Chapter("c", "C", (Rule("X1", "s", "r"),)),)
    assert faults(chapters) == []
    assert requirements.tests_by_rule(chapters) == {"X1": [A_TEST]}


def test_marks_are_read_from_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "import pytest\n"
        '@pytest.mark.requirement("X1", "X2")\n'
        '@pytest.mark.parametrize("a", [1])\n'
        "async def test_one(a): ...\n"
        "def helper(): ...\n"
        "def test_two(): ...\n"
    )
    monkeypatch.setattr(requirements, "ROOT", tmp_path)
    found = known_tests.__wrapped__()
    assert found == {
        "tests/test_a.py::test_one": frozenset({"X1", "X2"}),
        "tests/test_a.py::test_two": frozenset(),
    }


def test_a_malformed_rule_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('title = "T"\n[[rule]]\nid = "X1"\nsurprise = 1\n')
    with pytest.raises(SetupError, match=r"a.toml, rule X1: unknown \['surprise'\]"):
        load(tmp_path)


def test_experimental_recipes_and_schemas_are_no_proof() -> None:
    assert "nnrp-sched.streaming-chat" in known_recipes()
    assert all(name.startswith(("nnrp-sched.", "openai-compatible.")) for name in known_recipes())
