"""docs/programs.md says what is so."""

from pathlib import Path

import pytest

from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.earlier_tries import TRIES
from nnrp_sched_orchestrator.grants import CALL_TOKENS, MARGIN
from nnrp_sched_orchestrator.program_scope import AgentSettings
from tests.support.pages import page, printed_by_example

PAGE = page("programs.md")
AGENT = AgentSettings()


def test_the_example_runs(tmp_path: Path) -> None:
    printed = printed_by_example(PAGE, tmp_path)
    assert printed.splitlines() == [
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
