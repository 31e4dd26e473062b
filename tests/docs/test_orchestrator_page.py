"""docs/orchestrator.md says what is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nnrp_sched_orchestrator import fanout
from nnrp_sched_orchestrator.budget import Budget
from tests.cli.test_commands import SECONDS, serving

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "orchestrator.md").read_text()


def test_the_example_runs(tmp_path: Path) -> None:
    ((source),) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        script = tmp_path / "example.py"
        script.write_text(source.replace("nnrp://127.0.0.1:7437", ready["endpoints"][0]))
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    budget, cone, race = sorted(done.stdout.splitlines())
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
