"""The client's machine: submits, results, cancellation (wire digest 3, 4 and 6)."""

from collections.abc import Callable
from typing import Any

import pytest

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire import (
    CancelReason,
    CancelReceived,
    ClientConnection,
    ControlReceived,
    DropReason,
    OperationFailed,
    PartialReceived,
    Reply,
    ResultDropped,
    ResultReceived,
    SubmitReceived,
)
from nnrp_sched.wire.enums import ErrorCode, MessageType
from nnrp_sched.wire.operation_messages import ControlRequest, FrameSubmit, TraceContext
from tests.support.wire_machines import only, packets, replies, with_operation, with_session
from tests.support.wire_packets import DOCUMENT, OPERATION, SESSION, changed, raw_bytes, sample

M = MessageType


def send(client: ClientConnection, kind: MessageType, **changes: Any) -> list[Any]:
    """Send the client any message."""
    return client.receive(raw_bytes(changed(sample(kind), **changes)))


def partial(client: ClientConnection, sequence: int, **changes: Any) -> list[Any]:
    """Send the client an event of its stream."""
    return send(client, M.PARTIAL_RESULT, result_sequence=sequence, **changes)


# --- submits ------------------------------------------------------------------------------------


def test_frames_count_up_from_one_in_each_session() -> None:
    pair = with_session()
    pair.open(8)
    ids = [
        pair.client.submit(session_id, DOCUMENT, operation_id=operation_id)[0]
        for session_id, operation_id in ((SESSION, 5), (SESSION, 4), (8, 5), (SESSION, 6))
    ]
    assert ids == [1, 2, 1, 3]


def test_a_submit_is_the_profile_s_and_carries_the_trace() -> None:
    pair = with_session()
    _, data = pair.client.submit(SESSION, DOCUMENT, operation_id=5, trace_id=77)
    (packet,) = packets(data)
    assert (packet.metadata, packet.trace_id) == (FrameSubmit(operation_id=5), 77)
    event = only(pair.server.receive(data), SubmitReceived)
    assert (event.document, event.fault) == (DOCUMENT, None)


@pytest.mark.parametrize("operation_id", [0, -1, 2**64, OPERATION])
def test_an_operation_id_that_is_none_or_in_use_is_not_sent(operation_id: int) -> None:
    client = with_operation().client
    with pytest.raises(LocalProtocolError, match="not free"):
        client.submit(SESSION, DOCUMENT, operation_id=operation_id)
    assert client.submit(SESSION, DOCUMENT, operation_id=5)[0] == 2


def test_an_operation_id_is_not_used_again_after_its_end() -> None:
    client = with_operation().client
    send(client, M.RESULT_PUSH)
    with pytest.raises(LocalProtocolError, match="not free"):
        client.submit(SESSION, DOCUMENT, operation_id=OPERATION)


def test_no_more_operations_than_granted_are_in_flight() -> None:
    pair = with_session()
    pair.open(8, max_in_flight=2)
    for operation_id in (1, 2):
        pair.client.submit(8, DOCUMENT, operation_id=operation_id)
    with pytest.raises(LocalProtocolError) as raised:
        pair.client.submit(8, DOCUMENT, operation_id=3)
    assert raised.value.code == ErrorCode.LIMIT_EXCEEDED
    send(pair.client, M.RESULT_DROP, session_id=8)
    assert pair.client.submit(8, DOCUMENT, operation_id=3)[0] == 3


# --- results ------------------------------------------------------------------------------------


def test_events_arrive_with_their_sequence() -> None:
    client = with_operation().client
    for sequence in (1, 2, 9):
        assert partial(client, sequence) == [
            PartialReceived(SESSION, 1, OPERATION, sequence, b"{}")
        ]


def test_delta_sequence_and_the_final_flag_are_not_looked_at() -> None:
    client = with_operation().client
    assert len(partial(client, 1, delta_sequence=77)) == 1
    assert len(partial(client, 2, delta_sequence=3, flags=1)) == 1


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"operation_id": 5}, "operation 5 is not the frame's"),
        ({"operation_id": 0}, "operation_id is 0"),
        ({"result_sequence": 0}, "result_sequence is 0"),
        ({"flags": 4}, "flags"),
        ({"body": b"", "body_bytes": 0}, "neither a body nor an object id"),
    ],
)
def test_a_broken_stream_costs_its_operation_and_the_server_is_told_to_stop(
    changes: dict[str, Any], words: str, before: int
) -> None:
    pair = with_operation()
    pair.submit(operation_id=6)
    for sequence in range(1, before + 1):
        partial(pair.client, sequence)
    events = (
        partial(pair.client, **{"sequence": before + 1, **changes})
        if ("result_sequence" not in changes)
        else send(pair.client, M.PARTIAL_RESULT, **changes)
    )
    reply, failed = events
    assert isinstance(failed, OperationFailed)
    assert failed.frame_id == 1
    assert words in failed.diagnostic
    assert only(pair.server.receive(reply.data), CancelReceived).frame_id == 1
    assert partial(pair.client, 10) == []
    assert len(send(pair.client, M.RESULT_PUSH, frame_id=2)) == 1


@pytest.mark.parametrize("sequence", [1, 2])
def test_a_sequence_that_does_not_rise_is_a_broken_stream(sequence: int) -> None:
    client = with_operation().client
    partial(client, 1)
    partial(client, 2)
    _, failed = partial(client, sequence)
    assert isinstance(failed, OperationFailed)
    assert "after 2" in failed.diagnostic


def test_a_result_ends_the_operation_with_its_document_and_times() -> None:
    times = {"queue_ms": 1, "inference_ms": 2, "server_total_ms": 3}
    assert send(with_operation().client, M.RESULT_PUSH, status_code=499, **times) == [
        ResultReceived(SESSION, 1, OPERATION, 499, DOCUMENT, 1, 2, 3)
    ]


@pytest.mark.parametrize("body", [b"", bytes(32)])
def test_an_empty_success_has_no_document_and_no_fault(body: bytes) -> None:
    nothing = {"payload_kind_bitmap": 0, "payload_frame_count": 0}
    event = only(send(with_operation().client, M.RESULT_PUSH, body=body, **nothing), ResultReceived)
    assert (event.document, event.fault) == (None, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"body": b"{}"}, "too few"),
        ({"payload_kind_bitmap": 2}, "0x2"),
        ({"payload_frame_count": 0}, "payload_frame_count"),
        ({"payload_kind_bitmap": 0, "payload_frame_count": 0}, "declares no payload"),
    ],
)
def test_a_result_with_a_wrong_body_still_ends_the_operation(
    changes: dict[str, Any], words: str
) -> None:
    client = with_operation().client
    event = only(send(client, M.RESULT_PUSH, **changes), ResultReceived)
    assert event.document is None
    assert event.fault is not None
    assert words in event.fault
    assert send(client, M.RESULT_PUSH) == []


def test_values_of_a_result_outside_the_registry_are_tolerated() -> None:
    event = only(
        send(with_operation().client, M.RESULT_PUSH, result_flags=8, result_class=9),
        ResultReceived,
    )
    assert (event.document, event.fault) == (DOCUMENT, None)


def test_a_drop_without_a_reason_ends_the_operation() -> None:
    assert send(with_operation().client, M.RESULT_DROP) == [
        ResultDropped(SESSION, 1, OPERATION, None, "")
    ]


def test_a_drop_with_a_reason_ends_the_operation() -> None:
    events = send(with_operation().client, M.RESULT_DROP_REASON, body=b"gone", diagnostic_bytes=4)
    assert events == [ResultDropped(SESSION, 1, OPERATION, DropReason.PEER_CANCELLED, "gone")]


def test_a_drop_for_a_reason_outside_the_registry_says_which() -> None:
    event = only(send(with_operation().client, M.RESULT_DROP_REASON, drop_reason=99), ResultDropped)
    assert event.reason is None
    assert "99" in event.diagnostic


def test_a_drop_of_another_operation_breaks_the_frame_s() -> None:
    _, failed = send(with_operation().client, M.RESULT_DROP_REASON, operation_id=5)
    assert isinstance(failed, OperationFailed)


RESULTS = [M.PARTIAL_RESULT, M.RESULT_PUSH, M.RESULT_DROP, M.RESULT_DROP_REASON]
ENDS = [M.RESULT_PUSH, M.RESULT_DROP, M.RESULT_DROP_REASON]
ADVICE = [
    *(M.PROGRESS, M.TRACE_CONTEXT, M.CANCEL, M.ABORT, M.PRIORITY_UPDATE, M.DEADLINE),
    *(M.EXPIRE_AT, M.SUPERSEDE, M.BUDGET_UPDATE, M.ROUTE_HINT, M.EXECUTION_HINT),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("late", [*RESULTS, *ADVICE], ids=lambda kind: kind.name)
def test_nothing_after_the_terminal_is_reported(end: MessageType, late: MessageType) -> None:
    client = with_operation().client
    assert len(send(client, end)) == 1
    assert send(client, late, frame_id=1) == []
    assert not client.closed


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("frame_id", [0, 9])
def test_a_result_for_a_frame_that_was_never_submitted_is_reported_as_it_is(
    kind: MessageType, frame_id: int
) -> None:
    pair = with_operation()
    event = only(send(pair.client, kind, frame_id=frame_id), ControlReceived)
    assert (event.packet.message_type, event.session_id, event.frame_id) == (kind, SESSION, 0)
    assert len(send(pair.client, M.RESULT_PUSH)) == 1


@pytest.mark.parametrize("kind", ADVICE, ids=lambda kind: kind.name)
def test_advice_about_an_operation_is_reported(kind: MessageType) -> None:
    event = only(send(with_operation().client, kind, frame_id=1), ControlReceived)
    assert (event.packet, event.frame_id) == (changed(sample(kind), frame_id=1), 1)


@pytest.mark.parametrize("kind", ADVICE, ids=lambda kind: kind.name)
def test_advice_about_an_unknown_frame_is_passed_over(kind: MessageType) -> None:
    assert send(with_operation().client, kind, frame_id=9) == []


SESSION_ADVICE = [
    *(M.FLOW_UPDATE, M.RESULT_HINT, M.CREDIT_UPDATE, M.BACKPRESSURE, M.RETRY_AFTER),
    *(M.ERROR_RECOVERABLE, M.PONG, M.TRACE_CONTEXT),
]


@pytest.mark.parametrize("kind", SESSION_ADVICE, ids=lambda kind: kind.name)
def test_advice_about_the_session_is_reported(kind: MessageType) -> None:
    event = only(send(with_operation().client, kind), ControlReceived)
    assert (event.packet, event.session_id, event.frame_id) == (sample(kind), SESSION, 0)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (M.PROGRESS, {"stage": 99}),
        (M.FLOW_UPDATE, {"scope": 9}),
        (M.BACKPRESSURE, {"level": 0}),
        (M.RESULT_HINT, {"reason": 9}),
        (M.ERROR_RECOVERABLE, {"code": 0}),
        (M.TRACE_CONTEXT, {"flags": 9}),
    ],
)
def test_advice_with_a_wrong_value_is_passed_over(
    kind: MessageType, changes: dict[str, Any]
) -> None:
    assert send(with_operation().client, kind, **changes) == []


# --- cancellation -------------------------------------------------------------------------------


def test_cancel_and_abort_name_the_operation_and_count_up() -> None:
    pair = with_operation()
    cancel = pair.client.cancel(SESSION, 1, reason=CancelReason.DEADLINE, diagnostic="late")
    abort = pair.client.abort(SESSION, 1)
    assert [packet.metadata for packet in packets(cancel + abort)] == [
        ControlRequest(OPERATION, 1, CancelReason.DEADLINE, 1, 1, 4),
        ControlRequest(OPERATION, 2, CancelReason.USER_CANCELLED, 1, 2, 0),
    ]
    events = pair.server.receive(cancel + abort)
    assert [event.message_type for event in events if isinstance(event, CancelReceived)] == [
        M.CANCEL,
        M.ABORT,
    ]


def test_a_frame_cancel_is_understood_as_a_cancel() -> None:
    pair = with_operation()
    event = only(pair.server.receive(pair.client.frame_cancel(SESSION, 1)), CancelReceived)
    assert event.message_type is M.FRAME_CANCEL


COMMANDS: dict[str, Callable[[ClientConnection, int, int], bytes]] = {
    "cancel": lambda client, session_id, frame_id: client.cancel(session_id, frame_id),
    "abort": lambda client, session_id, frame_id: client.abort(session_id, frame_id),
    "frame_cancel": lambda client, session_id, frame_id: client.frame_cancel(session_id, frame_id),
    "trace": lambda client, session_id, frame_id: client.trace_context(session_id, frame_id, 1, 2),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_for_what_is_not_in_flight_raises(command: str) -> None:
    client = with_operation().client
    with pytest.raises(LocalProtocolError, match="not in flight"):
        COMMANDS[command](client, SESSION, 9)
    with pytest.raises(LocalProtocolError, match="not open"):
        COMMANDS[command](client, 8, 1)
    send(client, M.RESULT_PUSH)
    with pytest.raises(LocalProtocolError, match="not in flight"):
        COMMANDS[command](client, SESSION, 1)


def test_events_that_cross_a_cancel_arrive_and_those_that_cross_an_abort_do_not() -> None:
    client = with_operation().client
    client.cancel(SESSION, 1)
    assert len(partial(client, 1)) == 1
    client.abort(SESSION, 1)
    assert partial(client, 2) == []
    assert len(send(client, M.RESULT_DROP_REASON)) == 1


@pytest.mark.parametrize("end", ENDS, ids=lambda kind: kind.name)
def test_any_terminal_may_answer_a_cancel(end: MessageType) -> None:
    client = with_operation().client
    client.cancel(SESSION, 1)
    assert len(send(client, end)) == 1


def test_a_trace_context_mirrors_its_trace_id_into_the_header() -> None:
    pair = with_operation()
    data = pair.client.trace_context(SESSION, 1, 5, 6, 7, 1)
    (packet,) = packets(data)
    assert (packet.metadata, packet.trace_id) == (TraceContext(5, 6, 7, 0, 1, 0), 5)
    assert only(pair.server.receive(data), ControlReceived).frame_id == 1
    session_wide = pair.client.trace_context(SESSION, 0, 5, 6)
    assert only(pair.server.receive(session_wide), ControlReceived).frame_id == 0


@pytest.mark.parametrize("ids", [(0, 1), (1, 0)])
def test_a_trace_context_without_ids_is_not_sent(ids: tuple[int, int]) -> None:
    with pytest.raises(LocalProtocolError, match="trace id"):
        with_operation().client.trace_context(SESSION, 1, *ids)


def test_a_broken_operation_is_cancelled_only_once() -> None:
    pair = with_operation()
    events = partial(pair.client, 1, operation_id=5)
    assert len(replies(events)) == 1
    assert [type(event) for event in partial(pair.client, 2)] == []
    assert isinstance(events[0], Reply)
