"""The server's machine: submits, results, control (wire digest 3 and 4)."""

from collections.abc import Callable
from typing import Any

import pytest

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire import (
    CancelReceived,
    ControlReceived,
    DropReason,
    Limits,
    Packet,
    Reply,
    ServerConnection,
    SessionFailed,
    SubmitFault,
    SubmitReceived,
    decode_document,
    encode_document,
    encode_packet,
)
from nnrp_sched.wire.enums import ErrorCode, MessageType
from nnrp_sched.wire.operation_messages import (
    FrameSubmit,
    PartialResult,
    ResultDropReason,
    ResultPush,
)
from nnrp_sched.wire.session_messages import ErrorNotice, RecoverableError
from tests.support.wire_machines import first, only, replies, with_operation, with_session
from tests.support.wire_packets import DOCUMENT, OPERATION, SESSION, changed, raw_bytes, sample

M = MessageType
SUBMIT = sample(M.FRAME_SUBMIT)


def submit(server: ServerConnection, **changes: Any) -> list[Any]:
    """Send a submit that may be wrong."""
    return server.receive(raw_bytes(changed(SUBMIT, **changes)))


def send(server: ServerConnection, kind: MessageType, **changes: Any) -> list[Any]:
    """Send any other message."""
    return server.receive(raw_bytes(changed(sample(kind), **changes)))


def refused(events: list[Any]) -> int:
    """The code of the ERROR_RECOVERABLE that was the only answer."""
    assert [type(event) for event in events] == [Reply]
    (packet,) = replies(events)
    assert isinstance(packet.metadata, RecoverableError)
    return packet.metadata.code


# --- submits ------------------------------------------------------------------------------------


def test_a_submit_is_reported_with_its_document_and_its_trace() -> None:
    event = only(submit(with_session().server, trace_id=5), SubmitReceived)
    assert isinstance(SUBMIT.metadata, FrameSubmit)
    assert event == SubmitReceived(SESSION, 1, OPERATION, DOCUMENT, 5, SUBMIT.metadata, None)


def broken_document(place: int) -> bytes:
    """A typed body with one byte of its framing changed."""
    body = bytearray(encode_document(DOCUMENT))
    body[place] ^= 1
    return bytes(body)


FAULTY_BODIES: dict[str, dict[str, Any]] = {
    "two payload frames": {"payload_frame_count": 2},
    "no payload frame": {"payload_frame_count": 0},
    "token chunks": {"payload_kind_bitmap": 2},
    "unknown payload kinds": {"payload_kind_bitmap": 0x110},
    "nothing declared and nothing there": {
        **{"payload_kind_bitmap": 0, "payload_frame_count": 0, "body": b""}
    },
    "no body": {"body": b""},
    "bare JSON": {"body": DOCUMENT},
    "a body cut short": {"body": encode_document(DOCUMENT)[:-1]},
    "a body that goes on": {"body": encode_document(DOCUMENT) + b"x"},
    "a bound profile": {"body": broken_document(32)},
    "another payload kind in the descriptor": {"body": broken_document(34)},
    "descriptor flags": {"body": broken_document(35)},
    "a schema": {"body": broken_document(36)},
    "append semantics": {"body": broken_document(44)},
    "an offset": {"body": broken_document(48)},
    "body flags": {"body": broken_document(24)},
    "no operation id": {"operation_id": 0},
    "an unknown frame class": {"frame_class": 9},
    "an unknown loss tolerance": {"loss_tolerance": 77},
    "a tensor field": {"tile_w": 1},
}


@pytest.mark.parametrize("name", FAULTY_BODIES)
def test_a_submit_that_breaks_the_mapping_gets_an_answer_and_the_session_goes_on(
    name: str,
) -> None:
    server = with_session().server
    event = only(submit(server, **FAULTY_BODIES[name]), SubmitReceived)
    assert event.fault is not None
    assert event.fault.code == "invalid_submit_body"
    assert event.fault.message
    assert event.document == b""
    (answer,) = replies([Reply(server.push_result(SESSION, 1, b"{}", status_code=500))])
    assert answer.frame_id == 1
    assert only(submit(server, frame_id=2, operation_id=5), SubmitReceived).fault is None


def test_a_reused_operation_id_with_a_new_frame_is_a_duplicate() -> None:
    server = with_operation().server
    in_flight = only(submit(server, frame_id=2), SubmitReceived)
    server.push_result(SESSION, 1, None)
    finished = only(submit(server, frame_id=3), SubmitReceived)
    for event in (in_flight, finished):
        assert event.fault is not None
        assert event.fault.code == "duplicate_operation_id"
        server.push_result(SESSION, event.frame_id, b"{}")


def test_the_end_of_a_duplicate_leaves_the_first_operation_alone() -> None:
    server = with_operation().server
    submit(server, frame_id=2)
    server.push_result(SESSION, 2, b"{}")
    assert only(send(server, M.CANCEL), CancelReceived).frame_id == 1
    assert server.partial_result(SESSION, 1, b"{}")


def test_a_dropped_duplicate_is_dropped_without_the_first_one_s_id() -> None:
    server = with_operation().server
    submit(server, frame_id=2)
    (drop,) = replies([Reply(server.drop_result(SESSION, 2, DropReason.BACKPRESSURE, "no"))])
    assert (drop.message_type, drop.frame_id) == (M.RESULT_DROP, 2)


def test_a_submit_above_the_granted_number_is_told_so() -> None:
    pair = with_session()
    pair.open(8, max_in_flight=2)
    for frame_id in (1, 2):
        events = submit(pair.server, session_id=8, frame_id=frame_id, operation_id=frame_id)
        assert only(events, SubmitReceived).fault is None
    event = only(submit(pair.server, session_id=8, frame_id=3, operation_id=3), SubmitReceived)
    assert event.fault == SubmitFault(
        "adapter_operation_limit", "2 operations are in flight already"
    )
    pair.server.push_result(8, 3, b"{}")
    pair.server.push_result(8, 1, None)
    event = only(submit(pair.server, session_id=8, frame_id=4, operation_id=4), SubmitReceived)
    assert event.fault is None


def test_submits_without_end_fail_the_session() -> None:
    server = with_session(Limits(max_in_flight=2)).server
    for frame_id in range(1, 5):
        only(submit(server, frame_id=frame_id, operation_id=frame_id), SubmitReceived)
    events = submit(server, frame_id=5, operation_id=5)
    failed = first(events, SessionFailed)
    assert (failed.code, failed.frame_ids) == (ErrorCode.LIMIT_EXCEEDED, (1, 2, 3, 4))


@pytest.mark.parametrize("frame_id", [0, 1, 2])
def test_a_frame_id_that_does_not_rise_fails_the_session_and_no_other(frame_id: int) -> None:
    pair = with_session()
    pair.open(8)
    submit(pair.server, frame_id=2)
    submit(pair.server, session_id=8)
    events = submit(pair.server, frame_id=frame_id, operation_id=5)
    (packet,) = replies(events)
    error = packet.metadata
    assert isinstance(error, ErrorNotice)
    assert (error.code, error.scope, error.is_fatal) == (ErrorCode.INVALID_STATE, 1, 1)
    assert error.related_session == SESSION
    failed = first(events, SessionFailed)
    assert (failed.session_id, failed.frame_ids) == (SESSION, (2,))
    assert failed.message == packet.body.decode()
    assert pair.server.session_ids == (8,)
    with pytest.raises(LocalProtocolError, match="not open"):
        pair.server.push_result(SESSION, 2, None)
    assert pair.server.push_result(8, 1, None)


def test_frame_ids_may_be_passed_over() -> None:
    server = with_session().server
    submit(server, frame_id=2**32 - 1)
    with pytest.raises(LocalProtocolError, match="not in flight"):
        server.push_result(SESSION, 5, None)


# --- results ------------------------------------------------------------------------------------


def test_partial_results_count_from_one_and_carry_the_body_bare() -> None:
    server = with_operation().server
    data = b"".join(server.partial_result(SESSION, 1, body) for body in (b"{}", b"[1]"))
    sent = replies([Reply(data)])
    assert [packet.metadata for packet in sent] == [
        PartialResult(OPERATION, 1, 0, 0, 2, 0),
        PartialResult(OPERATION, 2, 0, 1, 3, 0),
    ]
    assert [packet.body for packet in sent] == [b"{}", b"[1]"]
    assert {(packet.session_id, packet.frame_id) for packet in sent} == {(SESSION, 1)}
    assert data == b"".join(encode_packet(packet) for packet in sent)


@pytest.mark.parametrize(
    ("session_id", "frame_id", "body", "words"),
    [
        (8, 1, b"{}", "session 8 is not open"),
        (SESSION, 2, b"{}", "frame 2 of session 7 is not in flight"),
        (SESSION, 1, b"", "needs a body"),
        (SESSION, 1, bytes(64 * 1024 * 1024 - 79), "larger than a packet"),
    ],
    ids=["session", "frame", "empty", "huge"],
)
@pytest.mark.parametrize("sent_before", [0, 1])
def test_an_illegal_partial_result_raises_and_changes_nothing(
    session_id: int, frame_id: int, body: bytes, words: str, sent_before: int
) -> None:
    server = with_operation().server
    for _ in range(sent_before):
        server.partial_result(SESSION, 1, b"{}")
    with pytest.raises(LocalProtocolError, match=words):
        server.partial_result(session_id, frame_id, body)
    (packet,) = replies([Reply(server.partial_result(SESSION, 1, b"{}"))])
    assert isinstance(packet.metadata, PartialResult)
    assert packet.metadata.result_sequence == sent_before + 1


def test_a_result_describes_its_body_and_saturates_its_times() -> None:
    server = with_operation().server
    data = server.push_result(
        SESSION, 1, b'{"a":1}', status_code=499, queue_ms=70_000, inference_ms=5, server_total_ms=6
    )
    (packet,) = replies([Reply(data)])
    assert packet.metadata == ResultPush(
        499,
        queue_ms=0xFFFF,
        inference_ms=5,
        server_total_ms=6,
        payload_kind_bitmap=0x10,
        payload_frame_count=1,
    )
    assert decode_document(0x10, 1, packet.body) == b'{"a":1}'


def test_an_empty_success_has_no_body_at_all() -> None:
    (packet,) = replies([Reply(with_operation().server.push_result(SESSION, 1, None))])
    assert (packet.metadata, packet.body) == (ResultPush(200), b"")


def test_a_drop_names_its_reason_and_the_last_sequence() -> None:
    server = with_operation().server
    server.partial_result(SESSION, 1, b"{}")
    data = server.drop_result(SESSION, 1, DropReason.DEADLINE_EXPIRED, "too late")
    (packet,) = replies([Reply(data)])
    assert packet.metadata == ResultDropReason(OPERATION, 1, 1, 2, 1, 8)
    assert packet.body == b"too late"


ENDINGS: dict[str, Callable[[ServerConnection], Any]] = {
    "result": lambda server: server.push_result(SESSION, 1, b"{}"),
    "empty": lambda server: server.push_result(SESSION, 1, None),
    "drop": lambda server: server.drop_result(SESSION, 1, DropReason.PEER_CANCELLED),
    "superseded": lambda server: server.drop_result(SESSION, 1, DropReason.SUPERSEDED),
    "abandoned": lambda server: server.abandon_operations(SESSION),
}


@pytest.mark.parametrize("first_end", ENDINGS)
def test_there_is_exactly_one_terminal_and_nothing_after_it(first_end: str) -> None:
    server = with_operation().server
    ENDINGS[first_end](server)
    for name in ("result", "empty", "drop", "superseded"):
        with pytest.raises(LocalProtocolError, match="not in flight"):
            ENDINGS[name](server)
    with pytest.raises(LocalProtocolError, match="not in flight"):
        server.partial_result(SESSION, 1, b"{}")


def test_a_failed_terminal_leaves_the_operation_in_flight() -> None:
    server = with_operation().server
    with pytest.raises(LocalProtocolError):
        server.push_result(SESSION, 1, None, status_code=70_000)
    with pytest.raises(LocalProtocolError):
        server.push_result(SESSION, 1, bytes(64 * 1024 * 1024))
    assert server.push_result(SESSION, 1, None)


# --- cancellation -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [M.CANCEL, M.ABORT], ids=lambda kind: kind.name)
def test_a_cancellation_is_reported_with_who_and_why(kind: MessageType) -> None:
    event = send(
        with_operation().server,
        kind,
        reason=3,
        source_role=4,
        body=b"late",
        diagnostic_bytes=4,
    )
    assert event == [CancelReceived(SESSION, 1, OPERATION, kind, 3, 4, "late")]


def test_a_frame_cancel_is_a_cancellation_by_frame_id() -> None:
    event = send(with_operation().server, M.FRAME_CANCEL)
    assert event == [CancelReceived(SESSION, 1, OPERATION, M.FRAME_CANCEL, 0, 1, "")]


@pytest.mark.parametrize("again", [M.CANCEL, M.FRAME_CANCEL], ids=lambda kind: kind.name)
def test_a_cancellation_is_reported_once_and_an_abort_once_more(again: MessageType) -> None:
    server = with_operation().server
    assert len(send(server, M.CANCEL)) == 1
    assert send(server, again) == []
    assert only(send(server, M.ABORT), CancelReceived).message_type is M.ABORT
    assert send(server, M.ABORT) == []
    assert send(server, again) == []


def test_events_on_their_way_may_follow_a_cancel_but_not_an_abort() -> None:
    server = with_operation().server
    send(server, M.CANCEL)
    assert server.partial_result(SESSION, 1, b"{}")
    assert server.partial_result(SESSION, 1, b"{}")
    send(server, M.ABORT)
    with pytest.raises(LocalProtocolError, match="no PARTIAL in state ABORTING"):
        server.partial_result(SESSION, 1, b"{}")
    assert server.drop_result(SESSION, 1, DropReason.PEER_CANCELLED)


def test_operation_zero_cancels_all_of_the_session_and_no_faulty_one() -> None:
    server = with_operation().server
    submit(server, frame_id=2, operation_id=5)
    submit(server, frame_id=3, operation_id=6, body=b"")
    events = send(server, M.CANCEL, operation_id=0, frame_id=0)
    assert [event.frame_id for event in events] == [1, 2]


def test_a_faulty_submit_is_not_cancelled_because_its_answer_is_on_the_way() -> None:
    server = with_session().server
    submit(server, body=b"")
    assert send(server, M.CANCEL) == []
    assert send(server, M.FRAME_CANCEL) == []
    with pytest.raises(LocalProtocolError, match="FAULTY"):
        server.partial_result(SESSION, 1, b"{}")
    assert server.push_result(SESSION, 1, b"{}")


# --- control ------------------------------------------------------------------------------------

ABOUT_AN_OPERATION = [
    *(M.PRIORITY_UPDATE, M.DEADLINE, M.EXPIRE_AT, M.SUPERSEDE, M.BUDGET_UPDATE, M.PROGRESS),
    *(M.PARTIAL_RESULT, M.ROUTE_HINT, M.EXECUTION_HINT, M.RESULT_DROP_REASON),
]
CANCELS = [M.CANCEL, M.ABORT]
BY_FRAME = [M.FRAME_CANCEL, M.TRACE_CONTEXT]


@pytest.mark.parametrize("kind", ABOUT_AN_OPERATION, ids=lambda kind: kind.name)
def test_control_of_an_operation_is_reported(kind: MessageType) -> None:
    packet = sample(kind)
    assert send(with_operation().server, kind) == [ControlReceived(packet, SESSION, 1)]


@pytest.mark.parametrize("frame_id", [0, 1])
def test_a_trace_context_is_about_an_operation_or_the_session(frame_id: int) -> None:
    packet = sample(M.TRACE_CONTEXT, frame_id=frame_id, trace_id=0, span_id=0)
    events = send(with_operation().server, M.TRACE_CONTEXT, frame_id=frame_id, span_id=0)
    event = only(events, ControlReceived)
    assert (event.session_id, event.frame_id) == (packet.session_id, frame_id)


@pytest.mark.parametrize(
    "kind", [*ABOUT_AN_OPERATION, *CANCELS, *BY_FRAME], ids=lambda kind: kind.name
)
def test_control_of_a_finished_operation_is_passed_over(kind: MessageType) -> None:
    server = with_operation().server
    server.push_result(SESSION, 1, None)
    assert send(server, kind, frame_id=1) == []


@pytest.mark.parametrize(
    "kind",
    [kind for kind in (*ABOUT_AN_OPERATION, *CANCELS) if kind not in (M.DEADLINE, M.EXPIRE_AT)],
    ids=lambda kind: kind.name,
)
def test_control_of_an_unknown_operation_is_refused(kind: MessageType) -> None:
    server = with_operation().server
    name = "old_operation_id" if kind is M.SUPERSEDE else "operation_id"
    unknown: dict[str, Any] = {name: 5, "frame_id": 2}
    assert refused(send(server, kind, **unknown)) == ErrorCode.INVALID_STATE


@pytest.mark.parametrize("kind", [*ABOUT_AN_OPERATION, *CANCELS], ids=lambda kind: kind.name)
@pytest.mark.parametrize("frame_id", [0, 2])
def test_control_with_the_frame_id_of_another_operation_is_refused(
    kind: MessageType, frame_id: int
) -> None:
    server = with_operation().server
    submit(server, frame_id=2, operation_id=5)
    assert refused(send(server, kind, frame_id=frame_id)) == ErrorCode.INVALID_STATE


@pytest.mark.parametrize("kind", BY_FRAME, ids=lambda kind: kind.name)
def test_a_frame_id_from_the_future_is_refused(kind: MessageType) -> None:
    assert refused(send(with_operation().server, kind, frame_id=9)) == ErrorCode.INVALID_STATE


def test_a_frame_cancel_without_a_frame_is_refused() -> None:
    assert refused(send(with_operation().server, M.FRAME_CANCEL, frame_id=0)) == 3


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (M.CANCEL, {"reason": 9}),
        (M.PRIORITY_UPDATE, {"priority_class": 3}),
        (M.DEADLINE, {"deadline_unix_ms": 0}),
        (M.PROGRESS, {"stage": 0}),
        (M.BACKPRESSURE, {"level": 0}),
        (M.FLOW_UPDATE, {"scope": 9}),
        (M.SESSION_CLOSE, {"reason": 9}),
    ],
)
def test_a_wrong_value_costs_its_message_and_nothing_else(
    kind: MessageType, changes: dict[str, Any]
) -> None:
    pair = with_operation()
    assert refused(send(pair.server, kind, **changes)) == ErrorCode.MALFORMED_BODY
    assert pair.server.push_result(SESSION, 1, None)


def test_an_overtaken_control_message_is_passed_over_within_its_type_only() -> None:
    server = with_operation().server

    def control(kind: MessageType, sequence: int) -> int:
        return len(send(server, kind, control_sequence=sequence))

    assert control(M.PRIORITY_UPDATE, 5) == 1
    assert control(M.PRIORITY_UPDATE, 4) == 0
    assert control(M.DEADLINE, 4) == 1
    # The SDK gives every control message of an operation the same number.
    assert control(M.PRIORITY_UPDATE, 5) == 1
    assert control(M.PRIORITY_UPDATE, 6) == 1


# --- deadlines before their submit --------------------------------------------------------------


def test_a_deadline_before_its_submit_follows_it() -> None:
    server = with_session().server
    assert send(server, M.DEADLINE) == []
    assert send(server, M.EXPIRE_AT) == []
    submitted, *deadlines = submit(server)
    assert isinstance(submitted, SubmitReceived)
    assert deadlines == [
        ControlReceived(sample(kind), SESSION, 1) for kind in (M.DEADLINE, M.EXPIRE_AT)
    ]
    assert len(submit(server, frame_id=2, operation_id=5)) == 1


def test_a_deadline_for_another_pair_of_ids_is_forgotten() -> None:
    server = with_session().server
    send(server, M.DEADLINE, operation_id=5)
    assert len(submit(server)) == 1


def test_of_two_early_deadlines_of_a_type_the_one_with_the_later_sequence_counts() -> None:
    server = with_session().server
    send(server, M.DEADLINE, control_sequence=5, deadline_unix_ms=50)
    send(server, M.DEADLINE, control_sequence=4, deadline_unix_ms=40)
    send(server, M.EXPIRE_AT, control_sequence=1, deadline_unix_ms=10)
    send(server, M.EXPIRE_AT, control_sequence=1, deadline_unix_ms=20)
    _, *kept = submit(server)
    times = [getattr(each.packet.metadata, "deadline_unix_ms", 0) for each in kept]
    assert times == [50, 20]


def test_deadlines_above_the_bound_are_refused_until_submits_have_passed_the_others() -> None:
    server = with_session().server
    answers = [
        send(server, M.DEADLINE, frame_id=frame_id, operation_id=frame_id)
        for frame_id in range(1, 101)
    ]
    assert answers[:64] == [[]] * 64
    for events in answers[64:]:
        (refusal,) = replies(events)
        assert refusal.message_type is M.ERROR_RECOVERABLE
        assert getattr(refusal.metadata, "code", 0) == ErrorCode.LIMIT_EXCEEDED
    # A later word on a deadline that waits already needs no room.
    assert send(server, M.DEADLINE, frame_id=1, operation_id=1, control_sequence=2) == []
    assert len(submit(server, frame_id=40, operation_id=40)) == 2
    assert send(server, M.DEADLINE, frame_id=100, operation_id=100) == []
    assert len(submit(server, frame_id=64, operation_id=64)) == 2
    assert len(submit(server, frame_id=65, operation_id=65)) == 1


def test_a_reading_of_many_packets_reports_them_in_order() -> None:
    server = with_session().server
    stream: list[Packet] = [
        changed(SUBMIT, frame_id=1, operation_id=1),
        changed(SUBMIT, frame_id=2, operation_id=2),
        changed(sample(M.CANCEL), frame_id=1, operation_id=1),
        changed(SUBMIT, frame_id=3, operation_id=3),
    ]
    events = server.receive(b"".join(encode_packet(packet) for packet in stream))
    assert [type(event) for event in events] == [
        SubmitReceived,
        SubmitReceived,
        CancelReceived,
        SubmitReceived,
    ]
