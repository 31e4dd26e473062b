"""The engine lanes: list, build, run something in one, run the engine tests in all. Stdlib only.

    python -m tools.lanes list
    python -m tools.lanes build [VERSION…]
    python -m tools.lanes run VERSION -- COMMAND…
    python -m tools.lanes test [VERSION…] [-- PYTEST ARGUMENTS…]
    python -m tools.lanes freeze [VERSION…]

`freeze` writes the versions that a lane has into tools/lane_constraints, where `build` takes them.

A lane for which the disk has no room is named and left out; one that cannot be built for another
reason is named, the others go on, and `build` and `test` end with exit code 1.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools import lane_build, steps, vllm_sources
from tools.engine_lanes import LANES, Lane
from tools.steps import ROOT, SetupError, say

ENGINE_LOCK = Path(tempfile.gettempdir()) / "engine.lock"
"""Held while engine tests run: two engines at once are too much for a small machine."""


PYTEST = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
    # vLLM 0.26 leaves one behind when its engine process was killed.
    *("-W", "ignore:Unclosed context:ResourceWarning"),
)
TESTED = ("tests/engine", "tests/patches")
"""The engine, and the patch layer itself: its tests are quick and the lanes differ in Python."""


@dataclass
class Report:
    """What became of the lanes asked for."""

    ready: list[Lane] = field(default_factory=list[Lane])
    outcomes: dict[str, str] = field(default_factory=dict[str, str])
    """By version, as it is told at the end."""
    failed: bool = False

    def leave_out(self, lane: Lane, reason: SetupError) -> None:
        """A lane without room on this disk is left out; any other fault is a failure."""
        fits = not isinstance(reason, lane_build.NoRoomError)
        self.failed = self.failed or fits
        self.outcomes[lane.version] = f"{'FAILED to build' if fits else 'LEFT OUT'}: {reason}"
        say(f"LANE {lane.version} {self.outcomes[lane.version]}")

    def tell(self) -> int:
        """Say what came out, lane by lane; the exit code."""
        for version, outcome in self.outcomes.items():
            say(f"lane {version}: {outcome}")
        return int(self.failed)


def listed(_: Sequence[Lane], __: Sequence[str]) -> int:
    """Print every lane, its state and its folder."""
    for lane in LANES:
        state = "current" if _current(lane) else "not current"
        print(f"{lane.version}\t{state}\t{lane.folder}")
    return 0


def build(lanes: Sequence[Lane], _: Sequence[str]) -> int:
    """Build lanes."""
    return _built(lanes).tell()


def run(lanes: Sequence[Lane], command: Sequence[str]) -> int:
    """Become a command in one lane."""
    if len(lanes) != 1 or not command:
        raise SetupError("usage: python -m tools.lanes run VERSION -- COMMAND…")
    (lane,) = lanes
    if not _current(lane):
        # It may hold another checkout of this project, which must not be what is run.
        build_it = f"python -m tools.lanes build {lane.version}"
        raise SetupError(f"lane {lane.version} is not current for {ROOT}: {build_it}")
    environment = lane.environment()
    os.execvpe(command[0], list(command), environment)


def test(lanes: Sequence[Lane], arguments: Sequence[str]) -> int:
    """Check the seam tables, then run the engine tests in each lane; a line of outcome for each."""
    for version in vllm_sources.WHEELS:
        vllm_sources.fetch(version)
    report = _built(lanes)
    for lane in report.ready:
        say(f"engine tests on vLLM {lane.version}")
        started = time.monotonic()
        command = (str(lane.python), *PYTEST, *TESTED, *arguments)
        environment = {**lane.environment(), "PYTHONDONTWRITEBYTECODE": "1"}
        with steps.locked(ENGINE_LOCK):
            if not lane.everyday:
                # Another checkout may have taken the lane while this one waited.
                lane_build.build(lane)
            code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        report.failed = report.failed or code != 0
        verdict = "passed" if code == 0 else f"FAILED with code {code}"
        report.outcomes[lane.version] = f"{verdict} after {time.monotonic() - started:.0f} s"
    return report.tell()


def freeze(lanes: Sequence[Lane], _: Sequence[str]) -> int:
    """Write down what lanes consist of, so that the next build is the same."""
    for lane in lanes:
        if not lane.everyday:
            lane_build.freeze(lane)
    return 0


def _built(lanes: Sequence[Lane]) -> Report:
    """Build what can be built."""
    report = Report()
    for lane in lanes:
        started = time.monotonic()
        try:
            if lane.everyday and not _current(lane):
                raise SetupError("it is .venv, which is not there: make setup")
            changed = not lane.everyday and lane_build.build(lane)
        except SetupError as error:
            report.leave_out(lane, error)
            continue
        state = f"built in {time.monotonic() - started:.0f} s" if changed else "current"
        report.outcomes[lane.version] = f"{state}, in {lane.folder}"
        report.ready.append(lane)
    return report


def _current(lane: Lane) -> bool:
    return lane.python.exists() if lane.everyday else lane_build.current(lane)


COMMANDS = {"list": listed, "build": build, "run": run, "test": test, "freeze": freeze}


def main() -> int:
    """Do what the command line says; the exit code."""
    ours, separator, rest = sys.argv[1:], "--", []
    if separator in ours:
        at = ours.index(separator)
        ours, rest = ours[:at], ours[at + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tools.lanes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parsed = parser.parse_args(ours)
    by_version = {lane.version: lane for lane in LANES}
    lanes = [by_version[version] for version in steps.chosen(parsed.versions, by_version)]
    return COMMANDS[parsed.command](lanes, rest)


if __name__ == "__main__":
    steps.finish(main)
