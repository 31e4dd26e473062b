"""What is counted, kept and told of a run of the engine tests."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import lane_build, lane_record, lane_tests, lanes, steps
from tools.engine_lanes import LANES, Lane
from tools.lane_record import LaneRun, Record, counted
from tools.steps import SetupError

REPORT = """\
<testsuites><testsuite>
  <testcase name="a"/>
  <testcase name="b"><failure message="no"/></testcase>
  <testcase name="c"><error message="at its end"/></testcase>
  <testcase name="d"><skipped message="vLLM has no such thing"/></testcase>
  <testcase name="e"/>
  <testcase name="f"><skipped message="vLLM has no such thing"/></testcase>
</testsuite></testsuites>
"""
RAN = LaneRun("1", "passed", "3.12.1", passed=2, seconds=60)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lane has to be there."""

    def version(lane: Lane) -> str:
        assert lane.version
        return "3.12.1"

    def environment(lane: Lane) -> dict[str, str]:
        # Without the libraries that a lane preloads: the linker complains of missing ones.
        assert lane.version
        return dict(os.environ)

    monkeypatch.setattr(lane_record, "python_version", version)
    monkeypatch.setattr(Lane, "environment", environment)


def test_tests_are_counted_by_what_became_of_them_and_skips_by_their_reason(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    ran = counted([report, report], LANES[0], 1, 61.4)
    assert (ran.passed, ran.failed, ran.skipped) == (4, 4, 4)
    assert ran.reasons == {"vLLM has no such thing": 4}
    assert ran.told == (
        "FAILED with code 1: 4 passed, 4 failed, 4 skipped in 61 s on Python 3.12.1"
    )


def test_a_lane_whose_pytest_left_no_report_says_so(tmp_path: Path) -> None:
    ran = counted([tmp_path / "nothing"], LANES[0], -9, 1)
    assert ran.outcome == "FAILED with code -9, without a report"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the record of this test goes; nothing is built, run or generated."""

    def build(lane: Lane) -> bool:
        assert lane.version
        return False

    def current(lane: Lane) -> bool:
        return bool(lane.version)

    def run(asked: list[Lane], arguments: list[str]) -> Iterator[LaneRun]:
        outcome = "FAILED with code 1" if arguments == ["-k", "broken"] else "passed"
        return (LaneRun(lane.version, outcome, "3.12.1") for lane in reversed(asked))

    def step(text: str, *command: str) -> str:
        return f"{text}{command}"

    monkeypatch.setattr(lane_build, "build", build)
    monkeypatch.setattr(lanes, "_current", current)
    monkeypatch.setattr(lane_tests, "run", run)
    monkeypatch.setattr(steps, "run", step)
    monkeypatch.setattr(lane_tests, "ENGINE_LOCK", tmp_path / "lock")
    monkeypatch.setattr(lane_record, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(lane_record, "commit", lambda: "abc")
    return tmp_path / "record.json"


def outcomes() -> list[tuple[str, str, str]]:
    """What is recorded."""
    return [(each.run.version, each.commit, each.run.outcome) for each in lane_record.read()]


@pytest.mark.usefixtures("kept")
def test_a_whole_run_is_kept_and_read_again() -> None:
    assert outcomes() == []
    assert lanes.test(LANES, []) == 0
    assert outcomes() == [(lane.version, "abc", "passed") for lane in LANES]


@pytest.mark.usefixtures("kept")
def test_a_lane_that_is_run_again_takes_the_place_of_its_last_run_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lanes.test(LANES, []) == 0
    monkeypatch.setattr(lane_record, "commit", lambda: "def")
    assert lanes.test(LANES[1:2], []) == 0
    assert outcomes() == [
        (lane.version, "def" if lane is LANES[1] else "abc", "passed") for lane in LANES
    ]


def test_a_selection_of_tests_leaves_the_record_as_it_was(kept: Path) -> None:
    assert lanes.test(LANES, ["-k", "queue"]) == 0
    assert not kept.exists()


@pytest.mark.usefixtures("kept")
def test_a_lane_that_was_not_asked_for_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert lanes.test(LANES[:3], []) == 0
    told = capsys.readouterr().err.splitlines()
    assert any("lane 0.32.0: not asked for here; `make test` runs it" in line for line in told)


@pytest.mark.usefixtures("kept")
def test_a_lane_whose_tests_fail_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert lanes.test(LANES, ["-k", "broken"]) == 1
    assert "lane 0.18.1: FAILED with code 1" in capsys.readouterr().err


@pytest.mark.usefixtures("kept")
def test_a_lane_that_cannot_be_built_fails_the_run_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(lane: Lane) -> bool:
        if lane is LANES[0]:
            raise SetupError("no index\nwhat pip said")
        return False

    monkeypatch.setattr(lane_build, "build", build)
    assert lanes.test(LANES, []) == 1
    assert "lane 0.18.1: FAILED to build: no index" in capsys.readouterr().err
    assert outcomes() == [(lane.version, "abc", "passed") for lane in LANES[1:]]


def test_what_a_lane_printed_is_shown_whole_when_it_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        lane_tests, "PYTEST", ("-c", "import sys; print(sys.argv[-1]); sys.exit(3)")
    )
    monkeypatch.setattr(Lane, "python", Path(sys.executable))
    ran = list(lane_tests.run(LANES, ["last"]))
    assert {lane.version for lane in ran} == {lane.version for lane in LANES}
    assert {lane.outcome for lane in ran} == {"FAILED with code 3, without a report"}
    assert capsys.readouterr().out == "last\n" * len(lane_tests.TESTED) * len(LANES)


@pytest.mark.parametrize(
    ("patches", "engine", "arguments", "outcome"),
    [
        (0, 5, ["-k", "hook"], "passed"),
        (5, 0, ["-k", "queue"], "passed"),
        (5, 5, ["-k", "typo"], "FAILED with code 5, without a report"),
        (0, 5, [], "FAILED with code 5, without a report"),
        (1, 5, ["-k", "hook"], "FAILED with code 1, without a report"),
        (0, 1, [], "FAILED with code 1, without a report"),
    ],
)
def test_a_selection_may_leave_one_part_empty_and_nothing_else_may(
    monkeypatch: pytest.MonkeyPatch,
    patches: int,
    engine: int,
    arguments: list[str],
    outcome: str,
) -> None:
    codes = {"tests/patches": patches, "tests/engine": engine}
    script = f"import sys; sys.exit({codes!r}[sys.argv[1]])"
    monkeypatch.setattr(lane_tests, "PYTEST", ("-c", script))
    monkeypatch.setattr(Lane, "python", Path(sys.executable))
    (ran,) = lane_tests.run(LANES[:1], arguments)
    assert ran.outcome == outcome


def test_a_row_tells_what_ran_when_and_what_came_of_it() -> None:
    record = Record("2026-01-01T00:00Z", "abc", "2 cores", RAN)
    assert list(lane_record.rows([record])) == [
        ("1", "3.12.1", "2026-01-01T00:00Z", "abc", "passed", "2", "0", "0", "60 s"),
    ]


def test_older_means_every_lane_but_the_everyday_one() -> None:
    assert [lane.version for lane in lanes.chosen(["older"])] == ["0.18.1", "0.22.1", "0.26.0"]
    assert lanes.chosen([]) == list(LANES)
