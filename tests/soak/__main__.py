"""Random traffic for as long as wanted: `python -m tests.soak [--minutes 10] [--seed N]`.

Ends with exit code 1 when something of the misbehaving peers is left; a wrong result of a healthy
client is an error at once.
"""

import argparse
import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from tests.soak.traffic import soak

_OBJECTS_PER_HOUR = 20_000
"""More than caches and tables of known bounds account for is a leak."""


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    # A warning for each misbehaving peer is right, and of no interest here.
    logging.getLogger("nnrp_sched").setLevel(logging.ERROR)
    with TemporaryDirectory() as directory:
        report = anyio.run(soak, asked.minutes * 60, asked.seed, Path(directory), _say)
    _say(f"{report.healthy} healthy chats, all right, in {report.seconds:.0f} s")
    for way, count in sorted(report.ways.items()):
        _say(f"{count:8} x {way}")
    _say(f"tasks {report.tasks[0]} → {report.tasks[1]}")
    _say(f"objects {report.objects[0]} → {report.objects[1]}")
    grown = report.objects[1] - report.objects[0]
    if report.tasks[1] > report.tasks[0]:
        report.left.append(f"{report.tasks[1] - report.tasks[0]} tasks")
    if grown > _OBJECTS_PER_HOUR:
        report.left.append(f"{grown} objects")
    for what in report.left:
        _say(f"left behind: {what}")
    return 1 if report.left else 0


if __name__ == "__main__":
    sys.exit(main())
