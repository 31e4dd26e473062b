"""The tools that `nnrp-sched tool-host` serves to the example."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from nnrp_sched_orchestrator.subprocess_tool import subprocess_tool
from nnrp_sched_orchestrator.tools import function_tool

ROOT = Path(__file__).parents[2]


async def count_lines(folder: str) -> AsyncIterator[str]:
    """Count the lines of the Python files in a folder of the repository."""
    async for path in anyio.Path(ROOT / folder).glob("*.py"):
        yield f"{path.name}: {len((await path.read_text()).splitlines())}\n"


@subprocess_tool
def remote_watch(path: str) -> list[str]:
    """Show the end of a file of the repository, and what is added to it from now on."""
    return ["tail", "-n", "1", "-f", "--", str(ROOT / path)]


TOOLS = [function_tool(count_lines), remote_watch]
