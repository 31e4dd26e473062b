"""Examples tell their stories; what those of the orchestrator print on a real model."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import anyio

from nnrp_sched_patches.launch import Serving
from tests.support.carriers import Place
from tests.support.serving import scripted_server

_ROOT: Final = Path(__file__).resolve().parents[2]
_SECONDS: Final = 200

LOSER: Final = (
    r"  stopped quiz#\d+ while (running|waiting|admitting|queued) after .*, confirmed: True"
)
STORIES: Final = {
    "subagent_fanout": [
        r"fix-bug-42/reader called (read_file|grep)\(\{.*\}\)",
        r"fix-bug-42/finder called (read_file|grep)\(\{.*\}\)",
        r"fix-bug-42/reader says: ",
        r"fix-bug-42/finder says: ",
        r"the tokens budget of 'fix-bug-42/talker' \(48\) allows no more; spent there: 48 tokens, ",
        r"fix-bug-42/wanderer#\d+ was local: stopped after \d+ ms, confirmed: True",
        r"fix-bug-42/wanderer#\d+ was running: .*, confirmed: True, \d+ of 600 tokens made",
        r"The lead sums up: .",
        r"  fix-bug-42: \d+ tokens in 7 calls",
        r"  fix-bug-42/talker: 48 tokens in 1 calls",
    ],
    "race_and_hedge": [
        r"map: France: .*Paris",
        r"map: Italy: .",
        r"map: Spain: .",
        r"map: Japan: .",
        rf"race: .*Paris.*\n{LOSER}\n{LOSER}\n  saved at most 2\d\d tokens",
        r"hedge: .* \([12] started\)",
        r"best_of: .* \(score 0\.\d\d\)",
        rf"gather: cancelled, \d+ characters: .*\n{LOSER}\n  saved at most 8\d\d tokens",
        r"Spent \d+ tokens in 1[345] calls; cancelling saved at most \d+ tokens, \d+\.\d s",
    ],
    "tool_streams": [
        r"\d+ events in one order: \{'model': \d+, 'headings': \d+, 'grep': \d+, 'count_lines': ",
        r"The model called (headings|grep)\(\{.*\}\): \d+ lines",
        r"It says: ",
        r"Stopped here after \d+ ms; no process of it is left: True",
        r"Stopped tool-host after \d+ ms; no process of it is left: True",
    ],
}
"""By example, what is found in what it prints."""


async def check_story(serving: Serving, name: str, expected: Iterable[str], folder: Path) -> None:
    """Run an example on a real engine: each of `expected` is printed, and nothing runs on."""
    async with scripted_server(serving.engine, place=Place("tcp", folder)) as served:
        endpoint = str(served.server.endpoints[0])
        with anyio.fail_after(_SECONDS):
            done = await anyio.run_process(
                [sys.executable, "-m", f"examples.{name}", "--endpoint", endpoint],
                cwd=_ROOT,
                stderr=subprocess.STDOUT,
                check=False,
            )
        printed = done.stdout.decode()
        assert done.returncode == 0, printed
        for line in expected:
            assert re.search(line, printed), f"{line} is not in\n{printed}"
        assert not (await serving.engine.queue()).operations
