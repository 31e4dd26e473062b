"""What a fan-out has cost and saved."""

from typing import Any

import pytest

from nnrp_sched_orchestrator.fanout_report import Tally
from nnrp_sched_orchestrator.records import ModelResult, Receipt, StreamTimings


def timed(tokens: int, milliseconds: float, status: Any = "completed") -> ModelResult:
    times = StreamTimings(0.0, first_event=100.0, finished=100.0 + milliseconds)
    return ModelResult(status, usage={"completion_tokens": tokens}, timings=times)


def test_the_time_saved_is_by_the_measured_time_of_a_token() -> None:
    tally = Tally()
    tally.started = 3
    assert tally.ended(timed(11, 1000), None) == 11
    assert tally.ended(timed(1, 5000), None) == 1  # Its one token took no time after the first.
    receipt = Receipt("p#3", accepted=True, tokens=21)
    cut = ModelResult("cancelled", timings=timed(0, 1000).timings)
    tally.lost(receipt, tally.ended(cut, receipt), 100)
    report = tally.report(("p#1",), 2.5)
    assert report.tokens_spent == 33
    assert report.tokens_saved_at_most == 79
    assert report.seconds_per_token == pytest.approx(2.0 / 30)
    assert report.engine_seconds_saved_at_most == pytest.approx(79 * 2.0 / 30)
    assert report.seconds == 2.5


def test_without_tokens_no_time_is_made_up() -> None:
    tally = Tally()
    receipt = Receipt("p#1", accepted=True)
    tally.lost(receipt, tally.ended(ModelResult("cancelled"), receipt), None)
    report = tally.report((), 1.0)
    assert (report.tokens_spent, report.tokens_saved_at_most, report.without_limit) == (0, 0, 1)
    assert report.seconds_per_token is None
    assert report.engine_seconds_saved_at_most is None


def test_a_loser_that_made_more_than_it_was_known_to_be_allowed_saves_nothing() -> None:
    tally = Tally()
    tally.lost(Receipt("p#1"), 120, 100)
    assert tally.report((), 1.0).tokens_saved_at_most == 0
