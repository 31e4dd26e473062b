"""What an operation went through, by its record alone."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.observe.record import AbortObservation, OperationRecord, Phase, phases
from nnrp_sched.profile.scheduling import Timings

RECORD = OperationRecord(
    id="1.1", source="nnrp", operation="chat", outcome="completed", began=0.0, ended=100.0
)
ABORT = AbortObservation("cancel", 50.0, 60.0)


@pytest.mark.parametrize(
    ("timings", "abort", "expected"),
    [
        (Timings(), None, []),
        (Timings(submitted=1), ABORT, [("abort", 50, 60)]),
        (
            Timings(submitted=1, registered=2, queued=3, scheduled=10, first_token=20, finished=90),
            None,
            [("queue", 3, 10), ("prefill", 10, 20), ("decode", 20, 90)],
        ),
        (Timings(1, 2, 3, finished=58), ABORT, [("queue", 3, 58), ("abort", 50, 60)]),
        (Timings(1, 2, finished=58), ABORT, [("queue", 2, 58), ("abort", 50, 60)]),
        (
            Timings(1, 2, 3, scheduled=10, finished=58),
            ABORT,
            [("queue", 3, 10), ("prefill", 10, 58), ("abort", 50, 60)],
        ),
        (Timings(1, 2, 3), None, [("queue", 3, 100)]),
        (
            Timings(1, 2, 3, first_token=20, finished=90),
            None,
            [("queue", 3, 20), ("decode", 20, 90)],
        ),
    ],
)
def test_an_operation_has_the_phases_it_reached_and_no_later_one(
    timings: Timings,
    abort: AbortObservation | None,
    expected: list[tuple[Phase, float, float]],
) -> None:
    assert phases(msgspec.structs.replace(RECORD, timings=timings, abort=abort)) == expected


_TIME = st.none() | st.floats(0, 1e6)


@given(st.builds(Timings, *[_TIME] * 7), st.none() | st.just(ABORT))
def test_no_phase_ends_before_it_began(timings: Timings, abort: AbortObservation | None) -> None:
    record = msgspec.structs.replace(RECORD, timings=timings, abort=abort)
    assert all(began <= ended for _, began, ended in phases(record))
