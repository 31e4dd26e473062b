"""Calls that an engine gives the same index (T49, T50) are told apart; all others stay."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.profile import ChatMapper, Completed, Event, ToolCallCompleted, ToolCallError
from nnrp_sched.profile.tool_positions import ToolPositions
from tests.profile.chunks import finish, role, tool


def mapped(*chunks: dict[str, Any]) -> list[Event]:
    mapper = ChatMapper()
    events = [event for chunk in chunks for event in mapper.chunk(chunk)]
    return [*events, *mapper.finish()]


def completed(events: list[Event]) -> list[tuple[int, str, str, str]]:
    return [
        (event.index, event.call_id, event.name, event.arguments)
        for event in events
        if isinstance(event, ToolCallCompleted)
    ]


def in_body(events: list[Event]) -> list[tuple[str, str, str]]:
    last = events[-1]
    assert isinstance(last, Completed)
    calls = last.body["choices"][0]["message"]["tool_calls"]
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


def test_T49_parallel_calls_that_all_get_index_0_are_calls_of_their_own() -> None:
    events = mapped(
        role(),
        tool(0, "", call_id="a", name="f"),
        tool(0, '{"x":'),
        tool(0, "1}"),
        tool(0, "", call_id="b", name="g"),
        tool(0, '{"y":2}'),
        tool(0, '{"z":3}', call_id="c", name="f"),
        finish("tool_calls"),
    )
    assert completed(events) == [
        (0, "a", "f", '{"x":1}'),
        (1, "b", "g", '{"y":2}'),
        (2, "c", "f", '{"z":3}'),
    ]
    assert in_body(events) == [
        ("a", "f", '{"x":1}'),
        ("b", "g", '{"y":2}'),
        ("c", "f", '{"z":3}'),
    ]


def test_T50_two_calls_in_one_chunk_at_one_index_are_split_by_their_ids() -> None:
    both = tool(0, '{"a":1}', call_id="a", name="f")
    both["choices"][0]["delta"]["tool_calls"].append(
        tool(0, '{"b":2}', call_id="b", name="f")["choices"][0]["delta"]["tool_calls"][0]
    )
    events = mapped(role(), both, finish("tool_calls"))
    assert completed(events) == [(0, "a", "f", '{"a":1}'), (1, "b", "f", '{"b":2}')]
    assert not any(isinstance(event, ToolCallError) for event in events)


def test_an_index_that_was_given_away_is_not_given_twice() -> None:
    events = mapped(
        role(),
        tool(0, "{}", call_id="a", name="f"),
        tool(0, "{}", call_id="b", name="f"),
        tool(1, "{}", call_id="c", name="f"),
        finish("tool_calls"),
    )
    assert [(index, call_id) for index, call_id, _, _ in completed(events)] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
    ]


def test_an_id_that_changes_within_a_call_begins_none() -> None:
    for second in (
        tool(0, "}", call_id="b", name="f"),  # The call is not complete.
        tool(0, "}", call_id="b"),  # Some engines give each delta another id, without a name.
    ):
        events = mapped(role(), tool(0, "{", call_id="a", name="f"), second, finish("tool_calls"))
        assert completed(events) == [(0, "a", "f", "{}")]


def _entry(index: int | None, call_id: str | None, name: str | None, piece: str | None) -> Any:
    return {"index": index, "id": call_id, "function": {"name": name, "arguments": piece}}


def _chunk(entries: list[Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"tool_calls": entries}}]}


ENTRIES: st.SearchStrategy[Any] = st.builds(
    _entry,
    st.integers(0, 2) | st.none(),
    st.sampled_from(["a", "b", "", None]),
    st.sampled_from(["f", "g", None]),
    st.sampled_from(["{}", "{", "}", "", None]),
)
CHUNKS = st.lists(st.builds(_chunk, st.lists(ENTRIES, max_size=3)), max_size=6)


@given(CHUNKS)
def test_nothing_but_indexes_changes_and_the_engines_chunk_never_does(
    chunks: list[dict[str, Any]],
) -> None:
    positions = ToolPositions()
    for chunk in chunks:
        before = copy.deepcopy(chunk)
        placed = positions.placed(chunk)
        assert chunk == before
        old = chunk["choices"][0]["delta"]["tool_calls"]
        new = placed["choices"][0]["delta"]["tool_calls"]
        assert [{**entry, "index": None} for entry in new] == [
            {**entry, "index": None} for entry in old
        ]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["{", "}", '"a":1'])), max_size=12))
def test_calls_with_indexes_of_their_own_stay_where_they_are(
    pieces: list[tuple[int, str]],
) -> None:
    positions = ToolPositions()
    for index, piece in pieces:
        chunk = tool(index, piece, call_id=f"id-{index}", name="f")
        assert positions.placed(chunk) is chunk


def test_what_is_no_chunk_passes() -> None:
    for odd in ("{}", '{"choices":7}', '{"choices":[7,{"index":0,"delta":{"tool_calls":{}}}]}'):
        chunk = json.loads(odd)
        assert ToolPositions().placed(chunk) is chunk
