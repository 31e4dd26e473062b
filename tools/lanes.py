"""The engine lanes: list, build, run something in one, run the engine tests in all. Stdlib only.

    python -m tools.lanes list
    python -m tools.lanes build [VERSION…]
    python -m tools.lanes run VERSION -- COMMAND…
    python -m tools.lanes test [VERSION…] [-- PYTEST ARGUMENTS…]
    python -m tools.lanes freeze [VERSION…]

VERSION is one of the lanes' or `older`: all but the everyday lane, which `make test` runs. `freeze`
writes the versions that a lane has into tools/lane_constraints, where `build` takes them. What
`test` without arguments for pytest comes to is recorded in docs/engine-smoke.json and shown in
docs/vllm-compatibility.md.

A lane for which the disk has no room is named and left out; one that cannot be built for another
reason is named, the others go on, and `build` and `test` end with exit code 1.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tools import lane_build, lane_record, lane_tests, steps
from tools.engine_lanes import LANES, Lane
from tools.lane_record import LaneRun, Record
from tools.steps import ROOT, SetupError, say

OLDER = "older"


@dataclass
class Report:
    """What became of the lanes asked for."""

    ready: list[Lane] = field(default_factory=list[Lane])
    runs: dict[str, LaneRun] = field(default_factory=dict[str, LaneRun])
    """By version."""
    failed: bool = False

    def leave_out(self, lane: Lane, reason: SetupError) -> None:
        """A lane without room on this disk is left out; any other fault is a failure."""
        fits = not isinstance(reason, lane_build.NoRoomError)
        self.failed = self.failed or fits
        outcome = f"{'FAILED to build' if fits else 'LEFT OUT'}: {reason}"
        say(f"LANE {lane.version} {outcome}")
        # The rest is what a failed step printed.
        self.runs[lane.version] = LaneRun(lane.version, outcome.splitlines()[0])

    def tell(self) -> int:
        """Say what came out, lane by lane; the exit code."""
        for version, ran in self.runs.items():
            say(f"lane {version}: {ran.told}")
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
    """Run the engine tests in each lane; a line of outcome for each."""
    commit, date = lane_record.commit(), lane_record.now()
    # Another checkout would take the lanes for itself.
    with steps.locked(lane_tests.ENGINE_LOCK):
        report = _built(lanes)
        for ran in lane_tests.run(report.ready, arguments):
            report.failed = report.failed or ran.outcome != lane_record.PASSED
            report.runs[ran.version] = ran
    if not arguments:
        machine = lane_record.machine()
        runs = [report.runs[lane.version] for lane in report.ready]
        lane_record.keep(Record(date, commit, machine, ran) for ran in runs)
        page = (sys.executable, "-m", "tools.compatibility")
        steps.run(f"recording what ran in {lane_record.RECORD} and the compatibility page", *page)
    for lane in LANES:
        if lane not in lanes:
            elsewhere = "; `make test` runs it" if lane.everyday else ""
            say(f"lane {lane.version}: not asked for here{elsewhere}")
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
        report.runs[lane.version] = LaneRun(lane.version, f"{state}, in {lane.folder}")
        report.ready.append(lane)
    return report


def chosen(names: Sequence[str]) -> list[Lane]:
    """The lanes named, or all."""
    if list(names) == [OLDER]:
        return [lane for lane in LANES if not lane.everyday]
    by_version = {lane.version: lane for lane in LANES}
    return [by_version[version] for version in steps.chosen(names, by_version)]


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
    lanes = chosen(parsed.versions)
    return COMMANDS[parsed.command](lanes, rest)


if __name__ == "__main__":
    steps.finish(main)
