"""Events as bytes: what is written, and what a reader refuses."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import ProfileStreamError
from nnrp_sched.profile import (
    TERMINAL,
    Cancelled,
    Completed,
    Diagnostics,
    Error,
    ErrorObject,
    Event,
    OutputTextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallError,
    ToolCallStarted,
    Unknown,
    Usage,
    decode_event,
    encode_event,
)

FAULT = ErrorObject("server_error", "backend_error", "It failed.")
EVENTS: list[tuple[Event, dict[str, Any]]] = [
    (
        OutputTextDelta(0, "hé"),
        {"type": "response.output_text.delta", "index": 0, "delta": "hé"},
    ),
    (
        OutputTextDelta(1, "", {"id": "c"}),
        {
            "type": "response.output_text.delta",
            "index": 1,
            "delta": "",
            "openai_chunk": {"id": "c"},
        },
    ),
    (
        ToolCallStarted(0, "i", "c", "f"),
        {
            "type": "response.tool_call.started",
            "index": 0,
            "item_id": "i",
            "call_id": "c",
            "name": "f",
        },
    ),
    (
        ToolCallDelta(0, "i", "c", ""),
        {
            "type": "response.tool_call.delta",
            "index": 0,
            "item_id": "i",
            "call_id": "c",
            "arguments_delta": "",
        },
    ),
    (
        ToolCallCompleted(0, "i", "c", "f", "{}"),
        {
            "type": "response.tool_call.completed",
            "index": 0,
            "item_id": "i",
            "call_id": "c",
            "name": "f",
            "arguments": "{}",
        },
    ),
    (
        ToolCallError(0, "i", "c", FAULT),
        {
            "type": "response.tool_call.error",
            "index": 0,
            "item_id": "i",
            "call_id": "c",
            "error": {"type": "server_error", "code": "backend_error", "message": "It failed."},
        },
    ),
    (Usage({"total_tokens": 3}), {"type": "response.usage", "usage": {"total_tokens": 3}}),
    (Completed({"id": "c"}), {"type": "response.completed", "body": {"id": "c"}}),
    (
        Error(FAULT, {"vllm_status_code": 500}),
        {
            "type": "response.error",
            "error": {"type": "server_error", "code": "backend_error", "message": "It failed."},
            "diagnostics": {"vllm_status_code": 500},
        },
    ),
    (Cancelled("peer_cancelled"), {"type": "response.cancelled", "reason": "peer_cancelled"}),
    (Diagnostics({"a": 1}), {"type": "response.diagnostics", "diagnostics": {"a": 1}}),
    (Unknown("response.later", {"x": [1]}), {"type": "response.later", "x": [1]}),
]
STARTED = EVENTS[2][1]
REQUIRED = [
    (document, name)
    for event, document in EVENTS
    for name in document
    if not isinstance(event, Unknown) and name not in ("type", "openai_chunk", "diagnostics")
]


@pytest.mark.parametrize(("event", "document"), EVENTS, ids=lambda value: type(value).__name__)
def test_an_event_is_one_compact_utf8_json_object(event: Event, document: dict[str, Any]) -> None:
    encoded = encode_event(event)
    assert encoded == json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    assert decode_event(encoded) == event


@pytest.mark.parametrize(("event", "document"), EVENTS, ids=lambda value: type(value).__name__)
def test_unknown_fields_of_a_known_event_are_ignored(
    event: Event, document: dict[str, Any]
) -> None:
    if isinstance(event, Unknown):
        event = Unknown(event.type, {**event.fields, "later": 1})
    assert decode_event(json.dumps({**document, "later": 1}).encode()) == event


@pytest.mark.parametrize(("document", "name"), REQUIRED)
def test_a_known_event_without_a_required_field_is_refused(
    document: dict[str, Any], name: str
) -> None:
    members = {key: value for key, value in document.items() if key != name}
    with pytest.raises(ProfileStreamError, match=name) as caught:
        decode_event(json.dumps(members).encode())
    assert document["type"] in str(caught.value)


@pytest.mark.parametrize(("document", "name"), REQUIRED)
def test_a_known_event_with_a_field_of_a_foreign_type_is_refused(
    document: dict[str, Any], name: str
) -> None:
    foreigners: list[Any] = [None, True, 1.5, [], [{}]]
    for foreign in foreigners:
        with pytest.raises(ProfileStreamError, match=name):
            decode_event(json.dumps({**document, name: foreign}).encode())


@pytest.mark.parametrize(
    "document",
    [
        {"type": "response.output_text.delta", "index": -1, "delta": "x"},
        {"type": "response.output_text.delta", "index": 0, "delta": "x", "openai_chunk": "c"},
        {**STARTED, "item_id": ""},
        {**STARTED, "call_id": ""},
        {**STARTED, "name": ""},
        {"type": "response.tool_call.delta", "index": 0, "tool_call": {"id": "c"}},
        {"type": "response.error", "error": {"type": "t", "code": "c", "message": ""}},
        {"type": "response.error", "error": {"type": "t", "message": "m"}},
        {"type": "response.error", "error": "failed"},
        {"type": "response.completed", "body": []},
        {"type": "response.tool_call.paused", "call_id": "c"},
        {"type": "response.output_text.done", "text": "x"},
        {"type": "", "x": 1},
        {"type": 5},
        {"index": 0, "delta": "x"},
    ],
    ids=str,
)
def test_a_foreign_shape_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ProfileStreamError):
        decode_event(json.dumps(document).encode())


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"null",
        b'{"type":"response.later"',
        b'data: {"type":"response.later"}\n\n',
        b'{"type":"response.later"}{"type":"response.later"}',
        b'\xef\xbb\xbf{"type":"response.later"}',
        b'{"type":"response.output_text.delta","index":0,"delta":"\xff"}',
        b'{"type":"response.later","x":"\\ud83d"}',
        b'{"type":"response.later","x":' + b"[" * 100_000,
    ],
    ids=lambda document: document[:30].decode("latin-1"),
)
def test_what_is_not_one_utf8_json_object_is_refused(document: bytes) -> None:
    with pytest.raises(ProfileStreamError):
        decode_event(document)


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    encoded = encode_event(OutputTextDelta(0, "a\ud83d", {"x": ["\ude00", 1], "\ud83d": None}))
    assert decode_event(encoded) == OutputTextDelta(
        0, "a\ufffd", {"x": ["\ufffd", 1], "\ufffd": None}
    )
    assert decode_event(encode_event(Unknown("later", {"x": "\ud83d"}))) == Unknown(
        "later", {"x": "\ufffd"}
    )


def test_the_terminal_events_are_the_three_of_result_push() -> None:
    assert {Completed, Error, Cancelled} == TERMINAL


NAMES = ["type", "index", "delta", "item_id", "call_id", "name", "error", "usage", "body", "x"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=10,
)


@given(
    st.sampled_from([document["type"] for _, document in EVENTS] + ["response.tool_call.x"]),
    st.dictionaries(st.sampled_from(NAMES[1:]), JSON),
)
def test_any_object_is_an_event_or_a_stream_error(kind: str, members: dict[str, Any]) -> None:
    document = json.dumps({"type": kind, **members}).encode()
    try:
        event = decode_event(document)
    except ProfileStreamError as fault:
        assert str(fault)
    else:
        assert decode_event(encode_event(event)) == event


@given(st.binary())
def test_arbitrary_bytes_are_a_stream_error(document: bytes) -> None:
    with pytest.raises(ProfileStreamError):
        decode_event(document)
