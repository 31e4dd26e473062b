"""The rules that the runner holds every stream to, each of them broken once."""

import json
from typing import Any

import pytest

from nnrp_sched.conformance.stream import Stream

Event = dict[str, Any]

TEXT: Event = {"type": "response.output_text.delta", "index": 0, "delta": "hello"}
COMPLETED: Event = {
    "type": "response.completed",
    "body": {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}]},
}
ERROR_OBJECT: Event = {"type": "server_error", "code": "x", "message": "y"}
ERROR: Event = {"type": "response.error", "error": ERROR_OBJECT}
CANCELLED: Event = {"type": "response.cancelled", "reason": "peer_cancelled"}


def call(kind: str, call_id: str = "c", **members: Any) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = {
        "started": {"name": "f"},
        "delta": {"arguments_delta": "{}"},
        "completed": {"name": "f", "arguments": "{}"},
        "error": {"error": ERROR_OBJECT},
    }
    identity = {"index": 0, "item_id": f"item-{call_id}", "call_id": call_id}
    return {"type": f"response.tool_call.{kind}", **identity, **known[kind], **members}


def usage(total: int) -> Event:
    counts = {"input_tokens": 1, "output_tokens": 2, "total_tokens": total}
    return {"type": "response.usage", "usage": counts}


STARTED, DELTA, DONE = call("started"), call("delta"), call("completed")


def observed(partials: list[Any], terminal: Any = COMPLETED) -> Stream:
    stream = Stream()
    for number, event in enumerate(partials, 1):
        stream.partial(json.dumps(event).encode(), number)
    stream.document(json.dumps(terminal).encode())
    return stream


ALLOWED: list[tuple[list[Any], Event]] = [
    ([TEXT], COMPLETED),
    ([STARTED, DELTA, DONE], COMPLETED),
    ([STARTED, call("completed", arguments="")], COMPLETED),
    ([STARTED, DELTA, call("error")], ERROR),
    ([call("error")], COMPLETED),
    ([STARTED, DELTA], CANCELLED),
    (
        [STARTED, call("started", "d"), DELTA, call("delta", "d"), call("completed", "d"), DONE],
        COMPLETED,
    ),
    ([usage(3)], COMPLETED),
    ([{"type": "response.diagnostics", "diagnostics": {}}], COMPLETED),
    ([{"type": "vendor.note"}], COMPLETED),
    ([{**TEXT, "surprise": 1, "openai_chunk": {}}], COMPLETED),
]


@pytest.mark.parametrize(("partials", "terminal"), ALLOWED)
def test_what_the_profile_allows_has_no_fault(partials: list[Any], terminal: Any) -> None:
    assert observed(partials, terminal).faults == []


BREACHES: list[tuple[list[Any], Event, str]] = [
    # malformed stream order
    ([DELTA], COMPLETED, "was not started"),
    ([DONE], COMPLETED, "was not started"),
    ([STARTED, STARTED], CANCELLED, "was started already"),
    ([STARTED, DELTA, DONE, DELTA], COMPLETED, "has ended already"),
    ([STARTED, DELTA, DONE, DONE], COMPLETED, "has ended already"),
    ([STARTED, DELTA, call("error"), DONE], COMPLETED, "has ended already"),
    ([STARTED, DELTA], COMPLETED, "ended before its tool calls"),
    ([STARTED, DELTA], ERROR, "ended before its tool calls"),
    ([COMPLETED], COMPLETED, "response.completed in a PARTIAL_RESULT"),
    ([CANCELLED], CANCELLED, "response.cancelled in a PARTIAL_RESULT"),
    ([], TEXT, "which it cannot end"),
    # an identity or a sum that does not hold
    ([STARTED, call("delta", index=1)], CANCELLED, "index and item_id were"),
    ([STARTED, call("delta", item_id="other")], CANCELLED, "index and item_id were"),
    ([STARTED, DELTA, call("completed", name="g")], COMPLETED, "was started as 'f'"),
    ([STARTED, DELTA, call("completed", arguments="[]")], COMPLETED, "deltas add up to"),
    ([{**TEXT, "delta": "hallo"}], COMPLETED, "the deltas of choice 0 add up to 'hallo'"),
    ([usage(4)], COMPLETED, "is not total_tokens"),
    # a foreign shape
    ([{"type": "response.output_text.delta", "index": 0}], COMPLETED, "'delta' is a required"),
    ([{**TEXT, "index": -1}], COMPLETED, "less than the minimum"),
    ([{**TEXT, "openai_chunk": "x"}], COMPLETED, "is not of type 'object'"),
    ([call("started", call_id="")], COMPLETED, "should be non-empty"),
    ([call("error", error={"type": "t", "code": "c", "message": ""})], COMPLETED, "non-empty"),
    ([{"type": "response.tool_call.paused"}], COMPLETED, "unknown event type"),
    ([{"type": "response.output_text.done"}], COMPLETED, "unknown event type"),
    ([{"type": "response.usage", "usage": {"total_tokens": 1}}], COMPLETED, "not valid under"),
    (["text"], COMPLETED, "is no object"),
    ([{"delta": "x"}], COMPLETED, "is no object with a `type`"),
    ([], {**ERROR, "error": {"type": "x", "code": "y"}}, "is a required property"),
]


@pytest.mark.parametrize(("partials", "terminal", "fault"), BREACHES)
def test_each_breach_of_a_rule_is_named(partials: list[Any], terminal: Any, fault: str) -> None:
    faults = observed(partials, terminal).faults
    assert len(faults) == 1, faults
    assert fault in faults[0]


@pytest.mark.parametrize("body", [b"\xff", b"{", b'{"type":"a"}{"type":"b"}', b"data: {}\n\n", b""])
def test_a_body_that_is_not_one_json_document_is_named(body: bytes) -> None:
    stream = Stream()
    stream.partial(body, 1)
    assert "not one UTF-8 JSON document" in stream.faults[0]


@pytest.mark.parametrize("sequences", [(2,), (1, 1), (1, 3), (0,)])
def test_a_gap_in_the_sequence_is_named(sequences: tuple[int, ...]) -> None:
    stream = Stream()
    for sequence in sequences:
        stream.partial(json.dumps(TEXT).encode(), sequence)
    assert len(stream.faults) == 1
    assert "result_sequence" in stream.faults[0]
