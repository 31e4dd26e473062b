"""The order of tool-call events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import ProfileStreamError
from nnrp_sched.profile import (
    Completed,
    Event,
    OpenCall,
    OutputTextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallError,
    ToolCallEvent,
    ToolCallGrammar,
    ToolCallStarted,
    error_object,
)

FAULT = error_object("tool_call_incomplete", "cut")


def started(call_id: str = "c", name: str = "f") -> ToolCallStarted:
    return ToolCallStarted(0, f"item-{call_id}", call_id, name)


def delta(piece: str, call_id: str = "c") -> ToolCallDelta:
    return ToolCallDelta(0, f"item-{call_id}", call_id, piece)


def completed(arguments: str, call_id: str = "c", name: str = "f") -> ToolCallCompleted:
    return ToolCallCompleted(0, f"item-{call_id}", call_id, name, arguments)


def failed(call_id: str = "c") -> ToolCallError:
    return ToolCallError(0, f"item-{call_id}", call_id, FAULT)


def grammar_after(*events: Event) -> ToolCallGrammar:
    grammar = ToolCallGrammar()
    for event in events:
        grammar.observe(event)
    return grammar


@pytest.mark.parametrize(
    "events",
    [
        [started(), completed("")],
        [started(), delta("{"), delta(""), delta("}"), completed("{}")],
        [started(), delta("{"), failed()],
        [failed()],
        [
            started("a"),
            started("b"),
            delta("1", "b"),
            delta("2", "a"),
            completed("2", "a"),
            failed("b"),
        ],
    ],
)
def test_a_well_formed_order_leaves_no_call_open(events: list[Event]) -> None:
    assert grammar_after(*events).open_calls() == ()


@pytest.mark.parametrize(
    ("before", "breach", "fault"),
    [
        ([], delta("x"), "not started"),
        ([], completed(""), "not started"),
        ([started()], started(), "started already"),
        ([started(), completed("")], completed(""), "ended already"),
        ([started(), completed("")], failed(), "ended already"),
        ([started(), completed("")], delta("x"), "ended already"),
        ([started(), failed()], started(), "ended already"),
        ([started(), failed()], completed(""), "ended already"),
        ([failed()], started(), "ended already"),
        ([started()], ToolCallDelta(1, "item-c", "c", "x"), "index 0"),
        ([started()], ToolCallDelta(0, "other", "c", "x"), "item-c"),
        ([started()], ToolCallError(0, "other", "c", FAULT), "item-c"),
        ([started()], completed("", name="g"), "name 'f'"),
        ([started(), delta("{}")], completed("{"), "differ"),
        ([started(), delta("{}")], completed(""), "differ"),
    ],
)
def test_a_breach_is_refused_and_changes_nothing(
    before: list[Event], breach: Event, fault: str
) -> None:
    grammar = grammar_after(*before)
    open_before = grammar.open_calls()
    with pytest.raises(ProfileStreamError, match=fault) as caught:
        grammar.observe(breach)
    assert "'c'" in str(caught.value)
    assert grammar.open_calls() == open_before


def test_events_of_other_kinds_are_no_concern() -> None:
    grammar = grammar_after(OutputTextDelta(0, "x"), Completed({}), started())
    grammar.observe(OutputTextDelta(0, "y"))
    assert len(grammar.open_calls()) == 1


def test_open_calls_tell_what_came_so_far_in_the_order_of_their_starts() -> None:
    grammar = grammar_after(started("b"), started("a"), delta("{", "a"), delta('"', "a"))
    assert grammar.open_calls() == (
        OpenCall(0, "item-b", "b", "f", ""),
        OpenCall(0, "item-a", "a", "f", '{"'),
    )


ANY_EVENT: st.SearchStrategy[ToolCallEvent] = st.one_of(
    st.builds(started, st.sampled_from("ab")),
    st.builds(delta, st.sampled_from(["", "x"]), st.sampled_from("ab")),
    st.builds(completed, st.sampled_from(["", "x", "xx"]), st.sampled_from("ab")),
    st.builds(failed, st.sampled_from("ab")),
)


@given(st.lists(ANY_EVENT, max_size=12))
def test_the_table_agrees_with_the_grammar_as_the_profile_words_it(
    events: list[ToolCallEvent],
) -> None:
    grammar = ToolCallGrammar()
    accepted: dict[str, list[ToolCallEvent]] = {"a": [], "b": []}
    for event in events:
        try:
            grammar.observe(event)
        except ProfileStreamError:
            continue
        accepted[event.call_id].append(event)
    for call_id, order in accepted.items():
        kinds = [type(event) for event in order]
        assert kinds.count(ToolCallStarted) <= 1
        ends = [kind for kind in kinds if kind in (ToolCallCompleted, ToolCallError)]
        assert len(ends) <= 1
        if kinds and kinds != [ToolCallError]:
            assert kinds[0] is ToolCallStarted
        if ends:
            assert kinds[-1] is ends[0]
        is_open = any(call.call_id == call_id for call in grammar.open_calls())
        assert is_open == (bool(kinds) and not ends)
