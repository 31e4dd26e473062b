"""docs/orchestrator.md says what is so."""

import re
from pathlib import Path

import pytest

from nnrp_sched_orchestrator import fanout
from nnrp_sched_orchestrator.budget import Budget
from tests.support.pages import ROOT, page, printed_by_example

PAGE = page("orchestrator.md")


def test_the_example_runs(tmp_path: Path) -> None:
    printed = printed_by_example(PAGE, tmp_path)
    budget, cone, race = sorted(printed.splitlines())
    assert budget == "budget: tokens 16"
    assert cone == "cone: [('running', True), ('local', True)]"
    assert race.startswith("race: You said: Name a colour. ['")


def test_budgets_and_fan_out_are_named_whole() -> None:
    assert f"Budget({', '.join(Budget.__struct_fields__)})" in PAGE
    for name in ("map", "race", "hedge", "best_of", "gather"):
        assert f"`{name}`" in PAGE
        assert callable(getattr(fanout, name))


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_each_link_leads_somewhere(target: str) -> None:
    assert (ROOT / "docs" / target).exists()
