"""The envelope of `nnrp-sched-tools/1`."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import ProfileError
from nnrp_sched.profile import build_control, build_envelope, decode_event, encode_event
from nnrp_sched.profile.control_bodies import parse_body
from nnrp_sched.profile.events import ToolOutputDelta, ToolStopped
from nnrp_sched.profile.scheduling import AbortReceipt
from nnrp_sched.profile.tools import (
    MAX_ARGUMENTS,
    TOOLS_CALL,
    TOOLS_LIST,
    TOOLS_SCHEMA,
    CallBody,
    ToolAnswer,
    build_tools,
    parse_tools,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = st.sampled_from(["name", "arguments", "call_id", "max_output_bytes", "max_seconds", "x"])


def test_what_was_built_is_read_again() -> None:
    request = parse_tools(build_tools(TOOLS_CALL, {"name": "grep", "arguments": '{"a":1}'}))
    assert request is not None
    assert request.operation == TOOLS_CALL
    assert parse_body(request.body, CallBody) == CallBody("grep", '{"a":1}')


@pytest.mark.parametrize(
    "document",
    [
        build_envelope({"model": "m", "messages": [{"content": TOOLS_SCHEMA}]}),
        build_control(TOOLS_LIST, {}),
        b"\xff",
    ],
)
def test_a_document_of_another_schema_is_none(document: bytes) -> None:
    assert parse_tools(document) is None


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (build_tools("tools.explode", {}), "unsupported_operation"),
        (b'{"schema_version":"nnrp-sched-tools/1"}', "invalid_request_envelope"),
        (
            b'{"schema_version":"nnrp-sched-tools/1","operation":"tools.list","body":[]}',
            "invalid_request_envelope",
        ),
    ],
)
def test_a_malformed_request_is_refused_with_its_code(document: bytes, code: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_tools(document)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "grep\n"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "grep", "arguments": {"a": 1}}, "arguments"),
        ({"name": "grep", "arguments": "x" * (MAX_ARGUMENTS + 1)}, "arguments"),
        ({"name": "grep", "call_id": ""}, "call_id"),
        ({"name": "grep", "max_output_bytes": -1}, "max_output_bytes"),
        ({"name": "grep", "max_seconds": 0}, "max_seconds"),
        ({"name": "grep", "argumnets": "{}"}, "argumnets"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_by_name(body: dict[str, Any], named: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_body(body, CallBody)
    assert caught.value.code == "invalid_body"
    assert named in caught.value.message


@given(st.binary() | st.text().map(str.encode) | JSON.map(msgspec.json.encode))
def test_no_bytes_raise_anything_else(document: bytes) -> None:
    try:
        assert parse_tools(document) is None
    except ProfileError as error:
        assert error.code in ("unsupported_operation", "invalid_request_envelope")


@given(st.dictionaries(MEMBERS, JSON, max_size=5))
def test_whatever_a_call_says_it_is_one_or_an_invalid_body(body: dict[str, Any]) -> None:
    request = parse_tools(build_tools(TOOLS_CALL, body))
    assert request is not None
    try:
        asked = parse_body(request.body, CallBody)
    except ProfileError as error:
        assert error.code == "invalid_body"
    else:
        assert asked.name == body["name"]
        assert asked.max_seconds is None or asked.max_seconds > 0


@pytest.mark.parametrize(
    ("event", "document"),
    [
        (ToolOutputDelta("é\n"), {"type": "response.tool_output.delta", "delta": "é\n"}),
        (
            ToolStopped(AbortReceipt("1.2", "running", True, True, None, 2.5)),
            {
                "type": "response.tool_stopped",
                "receipt": {
                    "request_id": "1.2",
                    "state": "running",
                    "accepted": True,
                    "authoritative": True,
                    "tokens": None,
                    "latency_ms": 2.5,
                },
            },
        ),
    ],
)
def test_what_a_tool_says_on_its_way_is_an_event(
    event: ToolOutputDelta | ToolStopped, document: dict[str, Any]
) -> None:
    assert msgspec.json.decode(encode_event(event)) == document
    assert decode_event(encode_event(event)) == event


def test_an_answer_leaves_out_what_is_not_said() -> None:
    assert msgspec.to_builtins(ToolAnswer("completed")) == {"status": "completed"}
