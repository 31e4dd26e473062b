"""Runs the engine tests in lanes, some at once, and counts what they came to. Stdlib only."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tools import lane_record
from tools.engine_lanes import Lane
from tools.lane_record import LaneRun
from tools.steps import ROOT, say

ENGINE_LOCK = Path(tempfile.gettempdir()) / "engine.lock"
"""Held while engine tests run: one checkout's at a time."""
AT_ONCE = 2
"""Lanes that run at the same time: most of a lane's time one process of it starts, on one core."""
BINDING = "VLLM_CPU_OMP_THREADS_BIND"
"""The core that a lane's vLLM computes on: by itself each takes the first one."""

PYTEST = ("-m", "pytest", "-v", "-p", "no:cacheprovider")
TESTED = ("tests/patches", "tests/engine")
"""The patch layer itself, whose tests are quick while the lanes differ in Python, and the engine.
Each by itself: vLLM leaves a process with other logging and a frozen heap."""
NOTHING_SELECTED = 5
"""Pytest's code for it."""
FOR_ALL_VERSIONS = ("tests/patches/test_each_seam.py", "tests/patches/test_seam_tables.py")
"""They read the sources of every version, whatever the lane: `make test` is enough for them."""

EVERYDAY_ONLY = (
    "tests/engine/test_embedding.py",
    "tests/engine/test_embed_examples.py",
    "tests/engine/test_examples.py",
)
"""They need the agent frameworks, whose `openai` the older vLLMs do not go with, and what the
examples are tried with."""


def run(lanes: Sequence[Lane], arguments: Sequence[str]) -> Iterator[LaneRun]:
    """Run the engine tests in lanes that are built; each lane's outcome when it is there.

    `arguments` are further ones of pytest's. What a lane's pytest prints is shown when it ended.
    """
    cores: SimpleQueue[str] = SimpleQueue()
    for place in range(AT_ONCE):
        cores.put(core(place))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for ended in as_completed([pool.submit(_run, lane, arguments, cores) for lane in lanes]):
            ran, printed = ended.result()
            say(f"vLLM {ran.version} printed:")
            sys.stdout.write(printed)
            sys.stdout.flush()
            yield ran


def core(place: int) -> str:
    """What BINDING is for one of several that run at once: cores are given out in turn."""
    known = sorted(os.sched_getaffinity(0))
    return str(known[place % len(known)])


def _run(lane: Lane, arguments: Sequence[str], cores: "SimpleQueue[str]") -> tuple[LaneRun, str]:
    mine = cores.get()
    try:
        return _run_on(mine, lane, arguments)
    finally:
        cores.put(mine)


def _run_on(mine: str, lane: Lane, arguments: Sequence[str]) -> tuple[LaneRun, str]:
    say(f"engine tests on vLLM {lane.version}; what they print follows at their end")
    with tempfile.TemporaryDirectory(prefix="nnrp-sched-") as scratch:
        started = time.monotonic()
        log = Path(scratch) / "log"
        environment = {**lane.environment(), BINDING: mine}
        unfit = FOR_ALL_VERSIONS if lane.everyday else (*FOR_ALL_VERSIONS, *EVERYDAY_ONLY)
        left_out = tuple(f"--ignore={path}" for path in unfit)
        reports, codes = list[Path](), list[int]()
        for tested in TESTED:
            reports.append(Path(scratch) / f"{len(reports)}.xml")
            report = f"--junit-xml={reports[-1]}"
            command = (str(lane.python), *PYTEST, tested, *left_out, report, *arguments)
            with log.open("ab") as output:
                ended = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment,
                    check=False,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            codes.append(ended.returncode)
        code = _outcome(codes, selected=bool(arguments))
        ran = lane_record.counted(reports, lane, code, time.monotonic() - started)
        return ran, log.read_text(encoding="utf-8", errors="replace")


def _outcome(codes: Sequence[int], *, selected: bool) -> int:
    """The first exit code that is a failure; a selection may leave one part empty, not all."""
    fine = {0, NOTHING_SELECTED} if selected and 0 in codes else {0}
    return next((code for code in codes if code not in fine), 0)
