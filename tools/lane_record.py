"""What the engine tests came to, lane by lane: counted from pytest's report, kept in the docs.

The last whole run of each lane is kept in docs/engine-smoke.json; the compatibility page shows it.
Stdlib only.
"""

import json
import os
import platform
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.engine_lanes import LANES, Lane
from tools.steps import ROOT

RECORD = ROOT / "docs" / "engine-smoke.json"
UNKNOWN = "unknown"
PASSED = "passed"


@dataclass(frozen=True)
class LaneRun:
    """The engine tests on one lane."""

    version: str
    """vLLM's."""
    outcome: str
    """PASSED, or what became of it instead."""
    python: str = ""
    passed: int = 0
    failed: int = 0
    """Tests that failed or did not come to their end."""
    skipped: int = 0
    reasons: dict[str, int] = field(default_factory=dict[str, int])
    """Why tests were skipped, and how many for each reason."""
    seconds: int = 0

    @property
    def told(self) -> str:
        """One line."""
        if not self.python:
            return self.outcome
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        return f"{self.outcome}: {counts} in {self.seconds} s on Python {self.python}"


@dataclass(frozen=True)
class Record:
    """One run of all engine tests on one lane."""

    date: str
    """When the command began that ran it: UTC, to the minute, ISO 8601."""
    commit: str
    """What was checked out; says so when the files were not those of the commit."""
    machine: str
    run: LaneRun


def counted(reports: Sequence[Path], lane: Lane, code: int, seconds: float) -> LaneRun:
    """What pytest's JUnit reports of a lane say; `code` is pytest's, of a failure if any."""
    cases = [case for report in reports for case in _cases(report)]
    kinds = Counter(kind for kind, _ in cases)
    if code == 0:
        outcome = PASSED
    else:
        outcome = f"FAILED with code {code}"
        if not cases:
            outcome += ", without a report"
    return LaneRun(
        version=lane.version,
        outcome=outcome,
        python=python_version(lane),
        passed=kinds["passed"],
        failed=kinds["failed"],
        skipped=kinds["skipped"],
        reasons=dict(Counter(reason for kind, reason in cases if kind == "skipped")),
        seconds=round(seconds),
    )


def _cases(report: Path) -> Iterator[tuple[str, str]]:
    """Every test of a report: what became of it, and why if it was skipped."""
    if not report.exists():
        return
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            yield "failed", ""
        elif skipped is not None:
            yield "skipped", skipped.get("message", "")
        else:
            yield "passed", ""


def python_version(lane: Lane) -> str:
    """The version of a lane's interpreter."""
    question = "import platform; print(platform.python_version())"
    command = (str(lane.python), "-c", question)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    """What is checked out here; `unknown` outside a git checkout."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return UNKNOWN
    changed = _git("status", "--porcelain", "--", ".", f":!{RECORD.relative_to(ROOT)}")
    return f"{head} with changes" if changed else head


def _git(*arguments: str) -> str:
    try:
        said = subprocess.run(
            ("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""


def machine() -> str:
    """This machine, as far as it explains times."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({platform.machine()}), {gib:.0f} GiB"


def now() -> str:
    """The time, as a record has it."""
    return datetime.now(UTC).isoformat(timespec="minutes").replace("+00:00", "Z")


def keep(records: Iterable[Record]) -> None:
    """Keep records, each in place of the last one of its lane."""
    kept = {record.run.version: record for record in (*read(), *records)}
    # In the lanes' own order, so that a run changes what it changed.
    ordered = [asdict(kept[lane.version]) for lane in LANES if lane.version in kept]
    RECORD.write_text(f"{json.dumps(ordered, indent=2)}\n", encoding="utf-8")


def read() -> list[Record]:
    """The records that are kept, of the lanes that were ever run."""
    if not RECORD.exists():
        return []
    kept: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return [Record(run=LaneRun(**record.pop("run")), **record) for record in kept]


def rows(records: Iterable[Record]) -> Iterator[Sequence[str]]:
    """The table of records."""
    for record in records:
        run = record.run
        counts = map(str, (run.passed, run.failed, run.skipped))
        took = f"{run.seconds} s"
        yield run.version, run.python, record.date, record.commit, run.outcome, *counts, took
