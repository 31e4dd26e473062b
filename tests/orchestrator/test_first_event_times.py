"""The delay of a hedge, from what was observed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched_orchestrator.first_event_times import FirstEventTimes
from nnrp_sched_orchestrator.records import StreamTimings


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=60),
    st.floats(0.01, 0.99),
)
def test_a_quantile_is_an_observed_time_within_which_that_share_is(
    seconds: list[float], share: float
) -> None:
    times = FirstEventTimes(window=40, enough=1)
    for each in seconds:
        times.observe(StreamTimings(0.0, first_event=each * 1000))
    kept = seconds[-40:]
    found = times.quantile(share)
    assert found is not None
    within = sum(each <= found + 1e-9 for each in kept)
    below = sum(each < found - 1e-9 for each in kept)
    assert within >= share * len(kept) - 1e-9
    assert below <= share * len(kept) + 1e-9
    assert len(times) == len(kept)


def test_too_few_times_tell_nothing_and_a_call_without_an_event_none() -> None:
    times = FirstEventTimes(enough=2)
    times.observe(StreamTimings(0.0))
    times.observe(StreamTimings(0.0, first_event=5.0))
    assert (len(times), times.quantile(0.5)) == (1, None)
    for share in (0, 1, math.nan):
        with pytest.raises(ValueError, match="share"):
            times.quantile(share)
    with pytest.raises(ValueError, match="enough"):
        FirstEventTimes(enough=0)
