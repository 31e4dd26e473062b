"""Runs the engine tests in one lane and counts what they came to. Stdlib only."""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools import lane_build, lane_record, steps
from tools.engine_lanes import Lane
from tools.lane_record import LaneRun
from tools.steps import ROOT, say

ENGINE_LOCK = Path(tempfile.gettempdir()) / "engine.lock"
"""Held while engine tests run: two engines at once are too much for a small machine."""

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
TESTED = ("tests/engine", "tests/patches")
"""The engine, and the patch layer itself: its tests are quick and the lanes differ in Python."""
FOR_ALL_VERSIONS = ("tests/patches/test_each_seam.py", "tests/patches/test_seam_tables.py")
"""They read the sources of every version, whatever the lane: `make test` is enough for them."""


def run(lane: Lane, arguments: Sequence[str]) -> LaneRun:
    """Run the engine tests in a lane that is built; `arguments` are further ones of pytest's."""
    say(f"engine tests on vLLM {lane.version}")
    with (
        steps.locked(ENGINE_LOCK),
        tempfile.TemporaryDirectory(prefix="nnrp-sched-") as scratch,
    ):
        if not lane.everyday:
            # Another checkout may have taken the lane while this one waited.
            lane_build.build(lane)
        started = time.monotonic()
        report = Path(scratch) / "report.xml"
        left_out = (f"--ignore={path}" for path in FOR_ALL_VERSIONS)
        paths = (*TESTED, *left_out, f"--junit-xml={report}")
        command = (str(lane.python), *PYTEST, *paths, *arguments)
        environment = lane.environment()
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        return lane_record.counted(report, lane, code, time.monotonic() - started)
