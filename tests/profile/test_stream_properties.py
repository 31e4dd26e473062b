"""Properties of the mapper over generated streams: nothing is lost, no rule is broken."""

import json
from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import ProfileStreamError
from nnrp_sched.profile import (
    ChatMapper,
    Completed,
    Event,
    OutputTextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallError,
    ToolCallGrammar,
    ToolCallStarted,
    Usage,
    decode_event,
    encode_event,
)
from tests.profile.chunks import HEAD, chunk, finish, role, text, tool, usage

Chunks = list[dict[str, Any]]
PIECE = st.text(max_size=4)
ARGUMENTS = st.sampled_from(["", "{", "}", "{}", "1", '"', "é", "[", "]"])


@st.composite
def choice_chunks(draw: st.DrawFn, index: int) -> Chunks:
    """One choice of a well-formed stream: every kind of content, tool calls interleaved."""
    chunks: Chunks = [role(index)] if draw(st.booleans()) else []
    named: set[int] = set()
    for kind in draw(st.lists(st.sampled_from(["text", "rich", "tool", "both"]), max_size=8)):
        if kind == "text":
            chunks.append(text(draw(PIECE), index))
        elif kind == "rich":
            extra: dict[str, Any] = {"token_ids": draw(st.lists(st.integers(0, 9), max_size=2))}
            extra["logprobs"] = {"content": [{"token": draw(PIECE)}]}
            chunks.append(chunk({"reasoning": draw(PIECE), "later": draw(PIECE)}, index, **extra))
        elif kind == "both":
            chunks.append(chunk({"content": draw(PIECE), "reasoning": draw(PIECE)}, index))
        else:
            position = draw(st.integers(0, 2))
            head = {"call_id": f"id-{index}-{position}", "name": f"f{position}"}
            if position in named:
                head = {}
            elif draw(st.booleans()):
                # The head may come in halves, its arguments meanwhile.
                half = draw(st.sampled_from(["call_id", "name"]))
                chunks.append(
                    tool(position, draw(ARGUMENTS), index=index, **{half: head.pop(half)})
                )
            named.add(position)
            chunks.append(tool(position, draw(ARGUMENTS), index=index, **head))
    if draw(st.booleans()):
        chunks.append(finish(draw(st.sampled_from(["stop", "length", "tool_calls"])), index))
    return chunks


@st.composite
def streams(draw: st.DrawFn) -> Chunks:
    """Up to three choices, interleaved, and perhaps a summary."""
    queues = [draw(choice_chunks(index)) for index in range(draw(st.integers(1, 3)))]
    chunks: Chunks = []
    while queues := [queue for queue in queues if queue]:
        chunks.append(draw(st.sampled_from(queues)).pop(0))
    if draw(st.booleans()):
        chunks.append(usage())
    return chunks


def mapped(chunks: Chunks) -> list[Event]:
    mapper = ChatMapper()
    events = [event for one in chunks for event in mapper.chunk(one)]
    return [*events, *mapper.finish()]


def joined(chunks: Chunks, member: str) -> dict[int, str]:
    """The text that the deltas of each choice add up to."""
    texts: dict[int, str] = defaultdict(str)
    for one in chunks:
        for choice in one["choices"]:
            texts[choice["index"]] += choice["delta"].get(member) or ""
    return texts


def is_json(document: str) -> bool:
    try:
        json.loads(document)
    except ValueError:
        return False
    return True


def choices_of(events: list[Event]) -> dict[int, dict[str, Any]]:
    last = events[-1]
    assert isinstance(last, Completed)
    return {choice["index"]: choice for choice in last.body["choices"]}


@given(streams())
def test_every_event_survives_the_wire(chunks: Chunks) -> None:
    for event in mapped(chunks):
        assert decode_event(encode_event(event)) == event


@given(streams())
def test_tool_calls_keep_their_order_and_all_of_them_end(chunks: Chunks) -> None:
    *events, last = mapped(chunks)
    grammar = ToolCallGrammar()
    for event in events:
        grammar.observe(event)
        assert not isinstance(event, Completed)
    assert isinstance(last, Completed)
    assert grammar.open_calls() == ()


@given(streams())
def test_text_is_the_same_in_the_deltas_and_in_the_final_body(chunks: Chunks) -> None:
    events = mapped(chunks)
    choices = choices_of(events)
    texts: dict[int, str] = defaultdict(str)
    for event in events:
        if isinstance(event, OutputTextDelta):
            texts[event.index] += event.delta
    for index, content in joined(chunks, "content").items():
        assert texts[index] == content
        assert (choices[index]["message"]["content"] or "") == content


@given(streams())
def test_arguments_are_the_same_in_the_deltas_and_in_the_final_body(chunks: Chunks) -> None:
    events = mapped(chunks)
    sent: dict[str, str] = defaultdict(str)
    ends: dict[str, Event] = {}
    for event in events:
        if isinstance(event, ToolCallStarted):
            assert sent[event.call_id] == ""
        elif isinstance(event, ToolCallDelta):
            sent[event.call_id] += event.arguments_delta
        elif isinstance(event, ToolCallCompleted | ToolCallError):
            ends[event.call_id] = event
    in_body = {
        call["id"]: call["function"]
        for choice in choices_of(events).values()
        for call in choice["message"].get("tool_calls", ())
    }
    assert in_body.keys() == sent.keys() == ends.keys()
    for call_id, function in in_body.items():
        assert function["arguments"] == sent[call_id]
        end = ends[call_id]
        if isinstance(end, ToolCallCompleted):
            assert (end.name, end.arguments) == (function["name"], function["arguments"])
            assert end.arguments == "" or is_json(end.arguments)
        else:
            assert isinstance(end, ToolCallError)
            assert end.error.code == "tool_call_incomplete"
            assert not is_json(function["arguments"])


@given(streams())
def test_nothing_the_engine_sent_is_lost(chunks: Chunks) -> None:
    events = mapped(chunks)
    choices = choices_of(events)
    ridden = [
        event.openai_chunk
        for event in events
        if isinstance(event, OutputTextDelta | ToolCallStarted | ToolCallDelta)
        and event.openai_chunk is not None
    ]
    for member in ("reasoning", "later"):
        sent, rode = joined(chunks, member), joined(ridden, member)
        for index, expected in sent.items():
            assert choices[index]["message"].get(member, "") == expected
            assert rode[index] == expected
    for index, choice in choices.items():
        own = [one["choices"][0] for one in chunks if one["choices"]]
        own = [one for one in own if one["index"] == index]
        token_ids = [number for one in own for number in one.get("token_ids") or ()]
        assert choice.get("token_ids", []) == token_ids
        tokens = [entry for one in own if one["logprobs"] for entry in one["logprobs"]["content"]]
        assert (choice["logprobs"] or {"content": []})["content"] == tokens
        reasons = [one["finish_reason"] for one in own if one["finish_reason"]]
        assert choice["finish_reason"] == (reasons[-1] if reasons else None)
    summaries = [one for one in chunks if not one["choices"]]
    assert sum(isinstance(event, Usage) for event in events) == len(summaries)


@given(streams())
def test_the_quick_path_of_plain_text_changes_nothing(chunks: Chunks) -> None:
    # A null member says nothing, and keeps a chunk off the quick path.
    detours = [{**one, "padding": None} for one in chunks]
    slow = [encode_event(event).replace(b',"padding":null', b"") for event in mapped(detours)]
    assert slow == [encode_event(event) for event in mapped(chunks)]


KEYS = st.sampled_from(
    [
        "choices",
        "index",
        "delta",
        "content",
        "role",
        "reasoning",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
        "finish_reason",
        "usage",
        "prompt_tokens",
        "logprobs",
    ]
)
WILD = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "x", "{}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
WILD_ENTRY = st.fixed_dictionaries({}, optional={"index": WILD, "id": WILD, "function": WILD})
WILD_DELTA = st.fixed_dictionaries(
    {}, optional={"content": WILD, "x": WILD, "tool_calls": WILD | st.lists(WILD_ENTRY, max_size=3)}
)
WILD_CHOICE = st.fixed_dictionaries(
    {"index": st.integers(0, 1) | WILD, "delta": WILD_DELTA | WILD},
    optional={"finish_reason": WILD, "logprobs": WILD, "message": WILD},
)
WILD_CHUNK = st.fixed_dictionaries(
    {"choices": st.lists(WILD_CHOICE | WILD, max_size=3) | WILD},
    optional={"usage": WILD, "id": WILD, "object": WILD, "x": WILD},
)


@given(st.lists(WILD_CHUNK | st.sampled_from([role(), text("a"), HEAD]), max_size=5))
def test_no_chunk_breaks_the_mapper_and_every_event_stays_well_formed(chunks: Chunks) -> None:
    mapper = ChatMapper()
    grammar = ToolCallGrammar()
    events: list[Event] = []
    try:
        for one in chunks:
            events += mapper.chunk(one)
        events += mapper.finish()
    except ProfileStreamError:
        events += mapper.interrupt()
    for event in events:
        grammar.observe(event)
        assert decode_event(encode_event(event)) == event
    assert grammar.open_calls() == ()
