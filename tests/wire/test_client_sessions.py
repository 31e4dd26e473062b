"""The client's machine: greeting, sessions, errors and the end (wire digest 2 and 6)."""

from typing import Any

import pytest

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire import (
    ClientConnection,
    ConnectionCloseReceived,
    ConnectionFailed,
    ControlReceived,
    HelloAcknowledged,
    InFlightPolicy,
    Limits,
    OperationFailed,
    Reply,
    SessionClosed,
    SessionErrorCode,
    SessionFailed,
    SessionOpened,
    SessionOpenReceived,
    SessionOpenRejected,
    encode_packet,
)
from nnrp_sched.wire.enums import ErrorCode, MessageType
from nnrp_sched.wire.layout import BOTH, Scope
from nnrp_sched.wire.layouts import LAYOUTS
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session_messages import SessionClose, SessionOpenAck
from tests.support.wire_machines import Pair, only, replies, with_operation, with_session
from tests.support.wire_packets import REFUSED, SESSION, SUPPORTED, changed, raw_bytes, sample

M = MessageType
HELLO_ACK = sample(M.SERVER_HELLO_ACK)


def send(client: ClientConnection, kind: MessageType, **changes: Any) -> list[Any]:
    """Send the client any message."""
    return client.receive(raw_bytes(changed(sample(kind), **changes)))


def failure(events: list[Any]) -> int:
    """The code of a failed connection, whose ERROR and CLOSE were sent before."""
    *_, failed = events
    assert isinstance(failed, ConnectionFailed)
    assert [packet.message_type for packet in replies(events)] == [M.ERROR, M.CLOSE]
    return failed.error.code


def greeted() -> ClientConnection:
    """A client that said hello."""
    client = ClientConnection()
    client.hello()
    return client


# --- greeting -----------------------------------------------------------------------------------


def test_the_hello_is_acknowledged() -> None:
    event = only(greeted().receive(encode_packet(HELLO_ACK)), HelloAcknowledged)
    assert event.ack == HELLO_ACK.metadata


def test_the_hello_is_said_once() -> None:
    client = greeted()
    with pytest.raises(LocalProtocolError, match="already"):
        client.hello()


def test_nothing_else_is_sent_before_the_answer() -> None:
    client = greeted()
    with pytest.raises(LocalProtocolError, match="not answered the hello"):
        client.open_session()
    with pytest.raises(LocalProtocolError, match="not open"):
        client.submit(SESSION, b"{}", operation_id=1)


def test_an_answer_to_no_hello_ends_the_connection() -> None:
    events = ClientConnection().receive(encode_packet(HELLO_ACK))
    assert failure(events) == ErrorCode.INVALID_STATE
    assert failure(Pair().client.receive(encode_packet(HELLO_ACK))) == ErrorCode.INVALID_STATE


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"selected_version": 2}, ErrorCode.UNSUPPORTED_VERSION),
        ({"wire_format": 1}, ErrorCode.UNSUPPORTED_VERSION),
        ({"auth_status": 1}, ErrorCode.AUTH_FAILED),
        ({"profile_bitmap": 7}, ErrorCode.INVALID_STATE),
        ({"payload_kind_bitmap": 0xFF}, ErrorCode.INVALID_STATE),
        ({"codec_bitmap": 1}, ErrorCode.INVALID_STATE),
        ({"cache_object_bitmap": 1}, ErrorCode.INVALID_STATE),
        ({"payload_kind_bitmap": 0x02}, ErrorCode.UNSUPPORTED_CAPABILITY),
        ({"server_flags": 2}, ErrorCode.MALFORMED_BODY),
    ],
)
def test_an_answer_that_cannot_be_lived_with_ends_the_connection(
    changes: dict[str, Any], code: ErrorCode
) -> None:
    assert failure(send(greeted(), M.SERVER_HELLO_ACK, **changes)) == code


def test_the_native_server_s_answer_is_accepted() -> None:
    ack = {"profile_bitmap": 2, "payload_kind_bitmap": 0x73, "max_concurrent_frames": 1000}
    events = send(greeted(), M.SERVER_HELLO_ACK, token_ttl_ms=120_000, **ack)
    assert isinstance(only(events, HelloAcknowledged), HelloAcknowledged)


def test_requests_larger_than_the_server_takes_are_not_sent() -> None:
    pair = Pair(Limits(max_packet_bytes=500))
    pair.open()
    with pytest.raises(LocalProtocolError) as raised:
        pair.client.submit(SESSION, bytes(400), operation_id=1)
    assert raised.value.code == ErrorCode.LIMIT_EXCEEDED
    assert pair.client.submit(SESSION, bytes(300), operation_id=1)[0] == 1


BEFORE_READY = {M.SERVER_HELLO_ACK, M.TRANSPORT_PROBE, M.TRANSPORT_PROBE_ACK, M.ERROR, M.CLOSE}


@pytest.mark.parametrize(
    "kind", [kind for kind in M if kind not in BEFORE_READY], ids=lambda kind: kind.name
)
def test_anything_before_the_answer_ends_the_connection(kind: MessageType) -> None:
    assert failure(greeted().receive(encode_packet(sample(kind)))) == ErrorCode.INVALID_STATE


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in SUPPORTED
        if LAYOUTS[kind].senders != BOTH
        and "SERVER" not in {role.name for role in LAYOUTS[kind].senders}
    ],
    ids=lambda kind: kind.name,
)
def test_a_message_only_clients_send_ends_the_connection(kind: MessageType) -> None:
    events = with_operation().client.receive(encode_packet(sample(kind)))
    assert failure(events) == ErrorCode.INVALID_STATE


# --- sessions -----------------------------------------------------------------------------------


def test_sessions_open_in_the_order_they_were_asked_for() -> None:
    pair = Pair()
    requests = [
        only(pair.server.receive(pair.client.open_session(priority=priority)), SessionOpenReceived)
        for priority in (0, 1, 2)
    ]
    assert [request.open.priority for request in requests] == [0, 1, 2]
    accepted = pair.server.accept_session(requests[0], 9, max_in_flight=3, operation_credit=2)
    rejected = pair.server.reject_session(requests[1], SessionErrorCode.LIMIT_REACHED, "full")
    opened, refused = pair.client.receive(accepted + rejected)
    assert isinstance(opened, SessionOpened)
    assert (opened.session_id, opened.ack.max_in_flight) == (9, 3)
    assert isinstance(refused, SessionOpenRejected)
    assert (refused.diagnostic, refused.ack.session_error_code) == ("full", 0x10007)
    assert pair.client.session_ids == (9,)


def test_a_session_is_asked_for_with_the_sdk_s_values() -> None:
    pair = Pair()
    data = pair.client.open_session(priority=0, max_in_flight=8, requested_session_id=0x1234)
    request = only(pair.server.receive(data), SessionOpenReceived).open
    assert (request.profile_id, request.schema_id, request.schema_version) == (2, 0x1001, 3)
    assert (request.requested_session_id, request.max_in_flight) == (0x1234, 8)


@pytest.mark.parametrize("max_in_flight", [0, -1, 70_000])
def test_a_session_without_a_possible_number_of_operations_is_not_asked_for(
    max_in_flight: int,
) -> None:
    with pytest.raises(LocalProtocolError, match="max_in_flight"):
        Pair().client.open_session(max_in_flight=max_in_flight)


def test_an_unknown_priority_is_not_asked_for_and_nothing_waits_for_an_answer() -> None:
    client = Pair().client
    with pytest.raises(LocalProtocolError, match="priority"):
        client.open_session(priority=3)
    assert failure(send(client, M.SESSION_OPEN_ACK, session_id=7)) == ErrorCode.INVALID_STATE


def test_no_more_sessions_than_the_limit_are_asked_for() -> None:
    client = Pair(Limits(max_sessions=2)).client
    client.open_session()
    client.open_session()
    with pytest.raises(LocalProtocolError) as raised:
        client.open_session()
    assert raised.value.code == ErrorCode.LIMIT_EXCEEDED


@pytest.mark.parametrize(
    ("header_id", "metadata_id"), [(7, 8), (0, 7), (7, 0), (0, 0), (SESSION + 1, SESSION + 1)]
)
def test_an_acknowledgement_of_a_session_that_cannot_be_ends_the_connection(
    header_id: int, metadata_id: int
) -> None:
    pair = Pair()
    pair.open(SESSION + 1)
    pair.client.open_session()
    ack = SessionOpenAck(metadata_id, 2, 1, 0, 0x1001, 3, 4, 4)
    data = encode_packet(Packet(M.SESSION_OPEN_ACK, ack, session_id=header_id))
    assert failure(pair.client.receive(data)) == ErrorCode.INVALID_STATE


def test_a_rejected_acknowledgement_may_name_any_session() -> None:
    client = Pair().client
    client.open_session()
    ack = SessionOpenAck(42, 2, 1, 1, 0x1001, 3, 0, 0)
    data = encode_packet(Packet(M.SESSION_OPEN_ACK, ack, session_id=42))
    assert client.receive(data) == [SessionOpenRejected(ack, "")]


def test_closing_a_session_waits_for_its_acknowledgement() -> None:
    pair = with_operation()
    (close,) = replies([Reply(pair.client.close_session(SESSION, policy=InFlightPolicy.ABORT))])
    assert close.metadata == SessionClose(1, 1, 0, 901, 0, SESSION)
    with pytest.raises(LocalProtocolError, match="no CLOSE in state CLOSING"):
        pair.client.close_session(SESSION)
    with pytest.raises(LocalProtocolError, match="no SUBMIT in state CLOSING"):
        pair.client.submit(SESSION, b"{}", operation_id=5)
    assert send(pair.client, M.SESSION_CLOSE_ACK, status=2) == [SessionClosed(SESSION, (1,))]
    assert pair.client.session_ids == ()


@pytest.mark.parametrize("status", [0, 1])
def test_a_session_that_drains_still_takes_terminals(status: int) -> None:
    pair = with_operation()
    pair.client.close_session(SESSION)
    assert isinstance(
        only(send(pair.client, M.SESSION_CLOSE_ACK, status=status), ControlReceived),
        ControlReceived,
    )
    assert len(send(pair.client, M.RESULT_PUSH)) == 1
    assert send(pair.client, M.SESSION_CLOSE_ACK, status=2) == [SessionClosed(SESSION, ())]


def test_a_rejected_close_leaves_the_session_open() -> None:
    client = with_session().client
    client.close_session(SESSION)
    send(client, M.SESSION_CLOSE_ACK, status=3)
    assert client.submit(SESSION, b"{}", operation_id=5)[0] == 1


def test_an_acknowledgement_of_no_close_ends_the_connection() -> None:
    events = send(with_session().client, M.SESSION_CLOSE_ACK, status=2)
    assert failure(events) == ErrorCode.INVALID_STATE


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (M.SESSION_CLOSE_ACK, {"status": 9}),
        (M.SESSION_OPEN_ACK, {"status": 9}),
        (M.ERROR, {"scope": 9}),
    ],
)
def test_a_wrong_value_where_everything_depends_on_it_ends_the_connection(
    kind: MessageType, changes: dict[str, Any]
) -> None:
    assert failure(send(with_session().client, kind, **changes)) == ErrorCode.MALFORMED_BODY


FOR_A_SESSION = [
    kind
    for kind in SUPPORTED
    if LAYOUTS[kind].scope is not Scope.CONNECTION
    and "SERVER" in {role.name for role in LAYOUTS[kind].senders}
    and kind not in (M.ERROR, M.SESSION_OPEN_ACK)
]


@pytest.mark.parametrize("kind", FOR_A_SESSION, ids=lambda kind: kind.name)
def test_a_message_for_a_session_that_never_was_ends_the_connection(kind: MessageType) -> None:
    events = send(with_session().client, kind, session_id=8)
    assert failure(events) == ErrorCode.INVALID_STATE


@pytest.mark.parametrize("kind", FOR_A_SESSION, ids=lambda kind: kind.name)
def test_a_message_for_a_session_that_ended_is_passed_over(kind: MessageType) -> None:
    client = with_operation().client
    client.close_session(SESSION)
    send(client, M.SESSION_CLOSE_ACK, status=2)
    assert send(client, kind) == []
    assert not client.closed


def test_a_session_id_may_be_used_again() -> None:
    pair = with_session()
    pair.client.close_session(SESSION)
    send(pair.client, M.SESSION_CLOSE_ACK, status=2)
    pair.client.open_session()
    ack = SessionOpenAck(SESSION, 2, 1, 0, 0x1001, 3, 4, 4)
    data = encode_packet(Packet(M.SESSION_OPEN_ACK, ack, session_id=SESSION))
    assert pair.client.receive(data) == [SessionOpened(SESSION, ack)]


# --- errors and the end -------------------------------------------------------------------------


def test_a_session_error_ends_that_session_only() -> None:
    pair = with_operation()
    pair.open(8)
    error = {"code": 7, "scope": 1, "related_session": SESSION}
    events = send(pair.client, M.ERROR, body=b"over", diagnostic_bytes=4, **error)
    assert events == [SessionFailed(SESSION, 7, "over", (1,))]
    assert pair.client.session_ids == (8,)
    assert send(pair.client, M.RESULT_PUSH) == []


def test_a_frame_error_ends_that_operation_only() -> None:
    pair = with_operation()
    pair.submit(operation_id=5)
    error = {"code": 12, "scope": 2, "related_session": SESSION, "related_frame": 1}
    assert send(pair.client, M.ERROR, **error) == [OperationFailed(SESSION, 1, 12, "")]
    assert send(pair.client, M.ERROR, **error) == []
    assert len(send(pair.client, M.RESULT_PUSH, frame_id=2)) == 1


def test_an_error_may_name_its_frame_in_the_header() -> None:
    events = send(with_operation().client, M.ERROR, code=12, scope=2, frame_id=1)
    assert events == [OperationFailed(SESSION, 1, 12, "")]


def test_an_error_about_a_session_we_do_not_have_is_passed_over() -> None:
    events = send(with_session().client, M.ERROR, scope=1, related_session=9, session_id=9)
    assert events == []


def test_a_fatal_connection_error_ends_the_connection_without_an_answer() -> None:
    client = with_session().client
    events = send(client, M.ERROR, code=11, is_fatal=1, session_id=0)
    assert only(events, ConnectionFailed).error.code == 11
    assert client.closed


def test_a_connection_error_that_is_not_fatal_is_reported() -> None:
    client = with_session().client
    assert isinstance(only(send(client, M.ERROR, session_id=0), ControlReceived), ControlReceived)
    assert not client.closed


def test_a_close_of_the_server_is_the_last_thing_heard() -> None:
    client = with_operation().client
    assert client.receive(encode_packet(Packet(M.CLOSE, None, b"bye")) + b"x" * 40) == [
        ConnectionCloseReceived("bye")
    ]
    assert client.receive(b"x" * 40) == []
    for command in (client.close, client.open_session):
        with pytest.raises(LocalProtocolError, match="closed"):
            command()
    with pytest.raises(LocalProtocolError, match="closed"):
        client.submit(SESSION, b"{}", operation_id=5)


def test_the_end_of_the_stream_inside_a_packet_is_a_failure() -> None:
    client = with_session().client
    assert client.receive(encode_packet(sample(M.PING))[:20]) == []
    assert failure(client.receive_end()) == ErrorCode.MALFORMED_HEADER


def test_the_end_of_the_stream_between_packets_is_no_failure() -> None:
    client = with_session().client
    assert client.receive_end() == []
    assert client.closed


def test_a_ping_and_a_probe_are_answered() -> None:
    client = with_session().client
    (pong,) = replies(send(client, M.PING, frame_id=3))
    assert (pong.message_type, pong.session_id, pong.frame_id) == (M.PONG, SESSION, 3)
    (answer,) = replies(send(client, M.TRANSPORT_PROBE, probe_id=4))
    assert answer.message_type is M.TRANSPORT_PROBE_ACK


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.name)
def test_a_type_without_support_is_passed_over(kind: MessageType) -> None:
    assert send(with_session().client, kind) == []
