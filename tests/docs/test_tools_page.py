"""docs/tools.md says what is so."""

from pathlib import Path

import pytest

from nnrp_sched.cli import hosted_tools
from nnrp_sched.profile.tools import TOOLS_OPERATIONS, TOOLS_SCHEMA, CallBody, ToolAnswer
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.agent_run import RunSettings
from nnrp_sched_orchestrator.process_group import MARK
from nnrp_sched_orchestrator.subprocess_tool import ProcessSettings
from nnrp_sched_orchestrator.tool_call import ToolLimits
from tests.support.pages import page, printed_by_example

PAGE = page("tools.md")


def test_the_example_runs(tmp_path: Path) -> None:
    printed = printed_by_example(PAGE, tmp_path)
    first, receipt = printed.splitlines()
    assert first == "0"  # The scripted engine asks to count to 1.
    assert "authoritative=True" in receipt


@pytest.mark.parametrize(
    "told",
    [
        f"`max_turns` ({RunSettings().max_turns})",
        f"`tools_at_once` ({RunSettings().tools_at_once})",
        f"`output_bytes` ({ToolLimits().output_bytes // 1024} KiB)",
        f"puts out {ToolLimits().excess:g} times as much",
        f"`seconds` ({ToolLimits().seconds:g})",
        f"`grace_seconds` ({ProcessSettings().grace_seconds:g})",
        f"`--max-calls` ({ServerLimits().max_tool_calls})",
        f"`--max-output-bytes` ({hosted_tools.MAX_OUTPUT_BYTES // 1024**2} MiB)",
        f"`--max-seconds` ({hosted_tools.MAX_SECONDS:g})",
        MARK,
        TOOLS_SCHEMA,
        *sorted(TOOLS_OPERATIONS),
    ],
)
def test_the_bounds_and_names_are_those_of_the_code(told: str) -> None:
    assert told in " ".join(PAGE.split())


def test_the_bodies_have_these_members() -> None:
    call = next(line for line in PAGE.splitlines() if line.startswith("| `tools.call`"))
    for name in (*CallBody.__struct_fields__, *ToolAnswer.__struct_fields__):
        assert name in call
