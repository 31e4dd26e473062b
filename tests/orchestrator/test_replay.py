"""What a reader has of a call that is made again is not shown twice."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.profile import Completed, Event, OutputTextDelta, ToolCallStarted, Usage
from nnrp_sched_orchestrator.replay import SHOWN_LIMIT, ReplayDiffers, Shown


def show(shown: Shown, events: list[Event]) -> list[Event]:
    """What a reader gets of one try."""
    return [fresh for event in events if (fresh := shown.new(event)) is not None]


def text(events: list[Event], index: int) -> str:
    return "".join(
        event.delta
        for event in events
        if isinstance(event, OutputTextDelta) and event.index == index
    )


def cut(answer: str, at: list[int]) -> list[Event]:
    """An answer in pieces."""
    places = sorted({0, len(answer), *(place % (len(answer) + 1) for place in at)})
    return [OutputTextDelta(0, answer[start:end]) for start, end in pairwise(places)]


PLACES = st.lists(st.integers(0, 100), max_size=6)


@given(st.text(min_size=1, max_size=40), st.lists(PLACES, min_size=1, max_size=4), st.data())
def test_however_an_answer_is_cut_and_interrupted_it_is_shown_once(
    answer: str, tries: list[list[int]], data: st.DataObject
) -> None:
    shown = Shown()
    got: list[Event] = []
    for places in tries:
        shown.restart()
        pieces = cut(answer, places)
        got += show(shown, pieces[: data.draw(st.integers(0, len(pieces)))])
        assert answer.startswith(text(got, 0))
    shown.restart()
    got += show(shown, cut(answer, []))
    assert text(got, 0) == answer


@given(st.text(alphabet="ab", min_size=1, max_size=8), st.text(alphabet="ab", max_size=8))
def test_an_answer_that_begins_otherwise_is_told_from_one_that_goes_on(
    first: str, second: str
) -> None:
    shown = Shown()
    show(shown, [OutputTextDelta(0, first)])
    shown.restart()
    if not second:
        return
    if first.startswith(second) or second.startswith(first):
        got = show(shown, [OutputTextDelta(0, second)])
        assert text(got, 0) == second[len(first) :]
    else:
        with pytest.raises(ReplayDiffers, match="another answer"):
            show(shown, [OutputTextDelta(0, second)])


CALL = ToolCallStarted(0, "i", "c", "read")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([OutputTextDelta(0, "a")], [CALL]),
        ([CALL], [OutputTextDelta(0, "a")]),
        ([CALL], [ToolCallStarted(0, "i", "other", "read")]),
        ([OutputTextDelta(0, "a")], [OutputTextDelta(1, "a")]),
        ([OutputTextDelta(0, "", {"choices": [1]})], [OutputTextDelta(0, "a")]),
        ([OutputTextDelta(0, "ab")], [OutputTextDelta(0, "a"), CALL]),
        ([Usage({"completion_tokens": 1})], [Usage({"completion_tokens": 2})]),
    ],
)
def test_anything_else_than_before_is_a_difference(before: list[Event], after: list[Event]) -> None:
    shown = Shown()
    assert show(shown, before) == before
    shown.restart()
    with pytest.raises(ReplayDiffers):
        show(shown, after)


def test_what_names_a_chunk_is_no_difference_and_what_it_says_is() -> None:
    def chunk(name: str, logprob: int) -> Event:
        return OutputTextDelta(0, "", {"id": name, "choices": [{"logprobs": logprob}]})

    shown = Shown()
    show(shown, [chunk("first", 1)])
    shown.restart()
    assert show(shown, [chunk("second", 1), Completed({})]) == [Completed({})]
    shown.restart()
    with pytest.raises(ReplayDiffers):
        show(shown, [chunk("second", 2)])


def test_a_call_with_too_many_events_is_not_compared() -> None:
    shown = Shown()
    for _ in range(SHOWN_LIMIT):
        assert not shown.overflowed
        shown.new(CALL)
    shown.new(CALL)
    assert shown.overflowed
