"""The estimate of a wait."""

import heapq
import random
from collections.abc import Iterator
from operator import itemgetter

import pytest

from nnrp_sched_patches.drain import DrainRate

Served = tuple[float, float]
"""When a request was queued, and when it began to run."""


def served(slots: int, requests: int, source: random.Random) -> list[Served]:
    """Requests in an engine with more of them than it can serve, of very different lengths."""
    lengths = [source.lognormvariate(3.4, 0.7) for _ in range(requests)]
    free, arrival, result = [0.0] * slots, 0.0, list[Served]()
    for length in lengths:
        arrival += source.expovariate(1.15 * slots / (sum(lengths) / requests))
        begins = max(arrival, heapq.heappop(free))
        heapq.heappush(free, begins + length)
        result.append((arrival, begins))
    return result


def estimates(requests: list[Served], every: float) -> Iterator[tuple[int, float, float]]:
    """Place in line, estimated and real rest of the wait, of all that wait, again and again."""
    rate, starts = DrainRate(), sorted(requests, key=itemgetter(1))
    now = 0.0
    while starts:
        now += every
        while starts and starts[0][1] <= now:
            rate.started(*starts.pop(0))
        line = [begins for queued, begins in requests if queued <= now < begins]
        for place, begins in enumerate(line):
            wait = rate.wait(place)
            if wait is not None:
                yield place, wait, begins - now


@pytest.mark.parametrize("places", [range(1), range(1, 4), range(4, 16)], ids=str)
def test_an_estimate_is_about_as_often_too_long_as_too_short(places: range) -> None:
    found = list(estimates(served(8, 400, random.Random(7)), every=7.0))
    too_long = [wait > real for place, wait, real in found if place in places]
    assert len(too_long) > 100
    assert 0.35 < sum(too_long) / len(too_long) < 0.65


def test_a_wait_is_estimated_from_the_starts_that_had_a_queue_behind_them() -> None:
    rate = DrainRate()
    assert rate.wait(0) is None
    rate.started(None, 0)
    # Arrivals at an idle engine say nothing of how fast a queue drains.
    for at in range(100, 1000, 100):
        rate.started(at - 1, at)
    assert rate.wait(0) is None
    for at in (910, 930, 950):
        rate.started(890, at)
    interval = 50 / 3
    assert rate.wait(0) == pytest.approx(0.69 * interval)
    assert rate.wait(3) == pytest.approx(3.69 * interval)


def test_an_estimate_follows_the_load_and_forgets_what_was_long_ago() -> None:
    rate = DrainRate()
    for number in range(100):
        rate.started(0, number * 50)
    slow = rate.wait(9)
    for number in range(100):
        rate.started(0, 5000 + number * 10)
    assert slow == pytest.approx(9.69 * 50)
    assert rate.wait(9) == pytest.approx(9.69 * 10)
