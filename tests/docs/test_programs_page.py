"""docs/programs.md says what is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.earlier_tries import TRIES
from nnrp_sched_orchestrator.grants import CALL_TOKENS, MARGIN
from nnrp_sched_orchestrator.program_scope import AgentSettings
from tests.cli.test_commands import SECONDS, serving

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "programs.md").read_text()
AGENT = AgentSettings()


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
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'orchestrator'}"},
        )
    assert done.stdout.splitlines() == [
        "You said: Where is it?",
        "OutputTextDelta",
        "running True",
        "0 () 2",
    ]


@pytest.mark.parametrize(
    "told",
    [
        f"`cancel_seconds` ({AGENT.cancel_seconds:g})",
        f"at most {AGENT.children} agents directly below it",
        f"{AGENT.depth} levels",
        f"{AGENT.streams} streams at once",
        f"last {AGENT.receipts} receipts",
        f"Up to {AGENT.stream.buffer_events} events wait",
        f"for {AGENT.stream.stall_seconds:g} s it is stopped",
        f"Up to {AGENT.event_buffer} wait",
        f"up to {CALL_TOKENS} and gets more",
        f"fewer than {4 * MARGIN} tokens",
        f"{MARGIN} are set aside",
        f"up to {TRIES} times",
        f"a grace ({ServerLimits().key_grace_seconds:g} s)",
    ],
)
def test_the_bounds_are_those_of_the_code(told: str) -> None:
    assert told in " ".join(PAGE.split())
