"""The requirements manifest: every rule of Level 1, and the tests that prove it. Stdlib only.

`docs/requirements/*.toml` hold the rules. A rule names its tests, a test may name its rules too
(`@pytest.mark.requirement("R1")`); both count. Recipes of `recipes/` count as tests: the runner's
own tests run every one of them.
"""

import ast
import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

from tools.steps import ROOT, SetupError

FOLDER: Final = ROOT / "docs" / "requirements"
MARK: Final = "requirement"

Status = Literal["fulfilled", "open", "declined"]

_MEMBERS: Final = frozenset({"id", "source", "rule", "tests", "recipes", "open", "declined"})
_NEEDED: Final = frozenset({"id", "source", "rule"})


@dataclass(frozen=True)
class Rule:
    """One rule."""

    id: str
    source: str
    """Where it stands: seed and section, the digest's number, adapter facts."""
    rule: str
    tests: tuple[str, ...] = ()
    """Node ids without parameters."""
    recipes: tuple[str, ...] = ()
    open: str = ""
    """What is still missing; a rule with this is not fulfilled."""
    declined: str = ""
    """Why this project does otherwise; the tests then prove what it does."""

    @property
    def status(self) -> Status:
        """Whether the rule is kept."""
        if self.open:
            return "open"
        return "declined" if self.declined else "fulfilled"


@dataclass(frozen=True)
class Chapter:
    """One file of the manifest."""

    name: str
    title: str
    rules: tuple[Rule, ...]


def load(folder: Path = FOLDER) -> tuple[Chapter, ...]:
    """Every chapter, in the order of the file names; raises SetupError for a malformed one."""
    return tuple(_chapter(path) for path in sorted(folder.glob("*.toml")))


def _chapter(path: Path) -> Chapter:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    rules = tuple(_rule(entry, path) for entry in document["rule"])
    return Chapter(path.stem, document["title"], rules)


def _rule(entry: Mapping[str, Any], path: Path) -> Rule:
    unknown, missing = entry.keys() - _MEMBERS, _NEEDED - entry.keys()
    if unknown or missing:
        raise SetupError(
            f"{path.name}, rule {entry.get('id')}: unknown {sorted(unknown)}, "
            f"missing {sorted(missing)}"
        )
    return Rule(
        id=entry["id"],
        source=entry["source"],
        rule=entry["rule"],
        tests=tuple(entry.get("tests", ())),
        recipes=tuple(entry.get("recipes", ())),
        open=entry.get("open", ""),
        declined=entry.get("declined", ""),
    )


@cache
def known_tests() -> Mapping[str, frozenset[str]]:
    """Every test function by its node id, with the rules that its marks name."""
    found: dict[str, frozenset[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, marks in _tests_of(ast.parse(path.read_text(encoding="utf-8"))):
            found[f"{path.relative_to(ROOT)}::{name}"] = marks
    return found


@cache
def known_recipes() -> frozenset[str]:
    """The ids of the recipes that are always run."""
    recipes = [json.loads(path.read_text()) for path in sorted((ROOT / "recipes").rglob("*.json"))]
    return frozenset(
        recipe["id"]
        for recipe in recipes
        if "operation" in recipe and recipe.get("status") in ("mandatory", "optional")
    )


def tests_by_rule(chapters: tuple[Chapter, ...]) -> dict[str, list[str]]:
    """Each rule's tests, those it names and those that name it."""
    marked: dict[str, set[str]] = {}
    for test, rules in known_tests().items():
        for rule in rules:
            marked.setdefault(rule, set()).add(test)
    return {
        rule.id: sorted({*rule.tests, *marked.get(rule.id, ())})
        for chapter in chapters
        for rule in chapter.rules
    }


def faults(chapters: tuple[Chapter, ...]) -> list[str]:
    """Everything by which rules and tests do not fit together; empty when they do."""
    rules = [rule for chapter in chapters for rule in chapter.rules]
    ids = [rule.id for rule in rules]
    proofs = tests_by_rule(chapters)
    found = [f"the rule {name} is there twice" for name, n in Counter(ids).items() if n > 1]
    for rule in rules:
        found += [
            f"{rule.id} names the test {test}, which does not exist"
            for test in rule.tests
            if test not in known_tests()
        ]
        found += [
            f"{rule.id} names the recipe {recipe}, which does not exist or is not always run"
            for recipe in rule.recipes
            if recipe not in known_recipes()
        ]
        if rule.status != "open" and not proofs[rule.id] and not rule.recipes:
            found.append(f"{rule.id} has no test and is not declared open")
    for test, marks in known_tests().items():
        found += [f"{test} is marked with {mark}, which no rule is" for mark in marks - set(ids)]
    return found


def _tests_of(module: ast.Module) -> Iterator[tuple[str, frozenset[str]]]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            yield node.name, frozenset(chain.from_iterable(map(_marks, node.decorator_list)))


def _marks(decorator: ast.expr) -> Iterator[str]:
    """The rules that `@pytest.mark.requirement(...)` names; nothing for another decorator."""
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(f".{MARK}"):
        for argument in decorator.args:
            yield str(ast.literal_eval(argument))
