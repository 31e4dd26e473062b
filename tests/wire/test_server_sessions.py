"""The server's machine: greeting, sessions, errors and the end (wire digest 2)."""

from collections.abc import Callable
from typing import Any

import pytest

from nnrp_sched.errors import LocalProtocolError, RemoteProtocolError
from nnrp_sched.wire import (
    ConnectionCloseReceived,
    ConnectionFailed,
    ControlReceived,
    HelloReceived,
    Limits,
    Reply,
    ServerConnection,
    SessionCloseReceived,
    SessionErrorCode,
    SessionFailed,
    SessionOpenReceived,
    SessionStatus,
    encode_packet,
)
from nnrp_sched.wire.enums import ErrorCode, ErrorScope, MessageType
from nnrp_sched.wire.handshake import SDK_HELLO
from nnrp_sched.wire.layout import BOTH, Scope
from nnrp_sched.wire.layouts import LAYOUTS
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session_messages import (
    ErrorNotice,
    RecoverableError,
    ServerHelloAck,
    SessionClose,
    SessionOpenAck,
    SessionPatchAck,
    TransportProbeAck,
)
from tests.support.wire_machines import Pair, first, only, replies, with_operation, with_session
from tests.support.wire_packets import (
    REFUSED,
    SESSION,
    SUPPORTED,
    changed,
    raw_bytes,
    sample,
)

M = MessageType
HELLO = Packet(M.CLIENT_HELLO, SDK_HELLO)


def fatal(events: list[Any]) -> ErrorNotice:
    """The ERROR of a connection that failed: before it nothing, after it CLOSE and the event."""
    *_, failed = events
    assert isinstance(failed, ConnectionFailed)
    error, close = replies(events)
    assert close.message_type is M.CLOSE
    assert isinstance(error.metadata, ErrorNotice)
    assert error.metadata.is_fatal == 1
    assert error.metadata.scope == ErrorScope.CONNECTION
    assert error.metadata.code == failed.error.code
    assert error.body.decode() == str(failed.error)
    return error.metadata


def refused(events: list[Any]) -> RecoverableError:
    """The ERROR_RECOVERABLE that was the only answer."""
    assert [type(event) for event in events] == [Reply]
    (packet,) = replies(events)
    assert isinstance(packet.metadata, RecoverableError)
    assert packet.metadata.diagnostic_bytes > 0
    return packet.metadata


# --- greeting -----------------------------------------------------------------------------------


def test_the_hello_is_answered_with_what_both_speak() -> None:
    events = ServerConnection(Limits(max_packet_bytes=5000, max_in_flight=9)).receive(
        encode_packet(HELLO)
    )
    assert events[1:] == [HelloReceived(SDK_HELLO)]
    (packet,) = replies(events)
    ack = packet.metadata
    assert isinstance(ack, ServerHelloAck)
    assert (ack.selected_version, ack.wire_format, ack.auth_status, ack.session_id) == (1, 0, 0, 0)
    assert (ack.profile_bitmap, ack.payload_kind_bitmap) == (3, 0x10)
    assert (ack.max_concurrent_frames, ack.max_body_bytes) == (9, 5000)
    assert packet.body == b""


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"min_version": 2, "max_version": 3}, ErrorCode.UNSUPPORTED_VERSION),
        ({"min_version": 0, "max_version": 0}, ErrorCode.UNSUPPORTED_VERSION),
        ({"wire_format_bitmap": 2}, ErrorCode.UNSUPPORTED_VERSION),
        ({"profile_bitmap": 4}, ErrorCode.UNSUPPORTED_CAPABILITY),
        ({"profile_bitmap": 0}, ErrorCode.UNSUPPORTED_CAPABILITY),
        ({"payload_kind_bitmap": 0x63}, ErrorCode.UNSUPPORTED_CAPABILITY),
        ({"auth_bytes": 1, "body": b"x"}, ErrorCode.UNSUPPORTED_CAPABILITY),
        ({"control_extension_bytes": 1, "body": b"x"}, ErrorCode.UNSUPPORTED_CAPABILITY),
    ],
)
def test_a_hello_that_leaves_nothing_in_common_ends_the_connection(
    changes: dict[str, Any], code: ErrorCode
) -> None:
    events = ServerConnection().receive(raw_bytes(changed(HELLO, **changes)))
    assert fatal(events).code == code


def test_a_wider_hello_is_narrowed_to_what_is_supported() -> None:
    offer = changed(HELLO, max_version=9, profile_bitmap=0xFF, codec_bitmap=7, max_lane_count=5)
    ack = replies(ServerConnection().receive(encode_packet(offer)))[0].metadata
    assert isinstance(ack, ServerHelloAck)
    assert (ack.profile_bitmap, ack.codec_bitmap, ack.max_lane_count) == (3, 0, 1)


def test_a_second_hello_ends_the_connection() -> None:
    assert fatal(Pair().server.receive(encode_packet(HELLO))).code == ErrorCode.INVALID_STATE


BEFORE_HELLO = {M.CLIENT_HELLO, M.TRANSPORT_PROBE, M.CLOSE}


@pytest.mark.parametrize(
    "kind", [kind for kind in M if kind not in BEFORE_HELLO], ids=lambda kind: kind.name
)
def test_anything_before_the_hello_ends_the_connection(kind: MessageType) -> None:
    events = ServerConnection().receive(encode_packet(sample(kind)))
    assert fatal(events).code == ErrorCode.INVALID_STATE


def test_a_probe_is_answered_before_and_after_the_hello() -> None:
    server = ServerConnection(clock_us=lambda: 1234)
    probe = encode_packet(sample(M.TRANSPORT_PROBE, body=b"padding", probe_id=9))
    for data in (probe, encode_packet(HELLO) + probe):
        answer = replies(server.receive(data))[-1]
        assert answer.metadata == TransportProbeAck(9, 1234)


# --- who may send what, about what --------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in SUPPORTED
        if LAYOUTS[kind].senders != BOTH
        and kind is not M.CLIENT_HELLO
        and "CLIENT" not in {role.name for role in LAYOUTS[kind].senders}
    ],
    ids=lambda kind: kind.name,
)
def test_a_message_only_servers_send_ends_the_connection(kind: MessageType) -> None:
    events = with_operation().server.receive(encode_packet(sample(kind)))
    assert fatal(events).code == ErrorCode.INVALID_STATE


@pytest.mark.parametrize(
    "kind",
    [M.CLIENT_HELLO, M.CLOSE, M.SESSION_OPEN, M.TRANSPORT_PROBE],
    ids=lambda kind: kind.name,
)
@pytest.mark.parametrize("ids", [{"session_id": 7}, {"frame_id": 1}], ids=["session", "frame"])
def test_a_connection_message_with_another_scope_s_ids_ends_the_connection(
    kind: MessageType, ids: dict[str, Any]
) -> None:
    server = ServerConnection() if kind is M.CLIENT_HELLO else with_session().server
    events = server.receive(encode_packet(sample(kind, **ids)))
    assert fatal(events).code == ErrorCode.MALFORMED_HEADER


@pytest.mark.parametrize("kind", [M.SESSION_CLOSE, M.SESSION_PATCH], ids=lambda kind: kind.name)
def test_a_session_message_with_a_frame_id_is_refused(kind: MessageType) -> None:
    error = refused(with_session().server.receive(encode_packet(sample(kind, frame_id=1))))
    assert (error.code, error.related_frame) == (ErrorCode.MALFORMED_BODY, 1)


FOR_A_SESSION = [
    kind
    for kind in SUPPORTED
    if LAYOUTS[kind].scope is not Scope.CONNECTION
    and "CLIENT" in {role.name for role in LAYOUTS[kind].senders}
    and kind not in (M.ERROR, M.ERROR_RECOVERABLE)
]


@pytest.mark.parametrize("kind", FOR_A_SESSION, ids=lambda kind: kind.name)
def test_a_message_for_an_unknown_session_is_answered_and_the_connection_lives(
    kind: MessageType,
) -> None:
    pair = with_session()
    events = pair.server.receive(encode_packet(sample(kind, session_id=8)))
    (packet,) = replies(events)
    assert len(events) == 1
    error = packet.metadata
    assert isinstance(error, ErrorNotice)
    assert (error.code, error.scope, error.is_fatal) == (
        ErrorCode.INVALID_STATE,
        ErrorScope.SESSION,
        0,
    )
    assert error.related_session == packet.session_id == 8
    assert pair.submit() == 1


@pytest.mark.parametrize("kind", [M.ERROR, M.ERROR_RECOVERABLE], ids=lambda kind: kind.name)
def test_an_error_about_an_unknown_session_is_never_answered_with_an_error(
    kind: MessageType,
) -> None:
    assert with_session().server.receive(encode_packet(sample(kind, session_id=8))) == []


def test_a_malformed_error_is_not_answered_either() -> None:
    server = with_session().server
    assert server.receive(raw_bytes(sample(M.ERROR_RECOVERABLE, scope=9))) == []


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.name)
def test_a_type_without_support_is_refused_and_the_connection_lives(kind: MessageType) -> None:
    pair = with_session()
    error = refused(pair.server.receive(encode_packet(sample(kind, body=b"x" * 30))))
    assert (error.code, error.scope) == (ErrorCode.UNSUPPORTED_CAPABILITY, ErrorScope.SESSION)
    assert pair.submit() == 1


@pytest.mark.parametrize("session_id", [0, SESSION])
def test_a_ping_is_answered_with_its_own_ids(session_id: int) -> None:
    ping = sample(M.PING, session_id=session_id, frame_id=4)
    (pong,) = replies(with_session().server.receive(encode_packet(ping)))
    assert (pong.message_type, pong.session_id, pong.frame_id) == (M.PONG, session_id, 4)


def test_a_session_patch_is_rejected_field_by_field() -> None:
    patch = sample(M.SESSION_PATCH, patch_mask=5)
    (answer,) = replies(with_session().server.receive(encode_packet(patch)))
    ack = answer.metadata
    assert isinstance(ack, SessionPatchAck)
    assert (ack.ack_status, ack.applied_patch_mask, ack.rejected_patch_mask) == (2, 0, 5)


ADVICE = [
    *(M.FLOW_UPDATE, M.CREDIT_UPDATE, M.BACKPRESSURE),
    *(M.RETRY_AFTER, M.PONG, M.ERROR_RECOVERABLE, M.ERROR),
]


@pytest.mark.parametrize("kind", ADVICE, ids=lambda kind: kind.name)
def test_advice_about_the_session_is_reported(kind: MessageType) -> None:
    packet = sample(kind)
    events = with_session().server.receive(encode_packet(packet))
    assert events == [ControlReceived(packet, SESSION, 0)]


# --- opening ------------------------------------------------------------------------------------


def ask(server: ServerConnection, **changes: Any) -> list[Any]:
    """Ask for a session."""
    return server.receive(raw_bytes(changed(sample(M.SESSION_OPEN), **changes)))


def acks(data: bytes) -> list[tuple[int, int, int]]:
    """Header session, status and error code of every SESSION_OPEN_ACK."""
    found: list[tuple[int, int, int]] = []
    for packet in replies([Reply(data)]):
        ack = packet.metadata
        assert isinstance(ack, SessionOpenAck)
        assert ack.session_id == packet.session_id
        assert len(packet.body) == ack.session_extension_bytes
        found.append((packet.session_id, ack.status, ack.session_error_code))
    return found


def test_an_accepted_session_echoes_what_was_asked_and_clamps_the_rest() -> None:
    server = Pair(Limits(max_in_flight=50)).server
    request = only(ask(server, priority=2, max_in_flight=4), SessionOpenReceived)
    data = server.accept_session(request, 7, max_in_flight=100, operation_credit=100)
    (packet,) = replies([Reply(data)])
    ack = packet.metadata
    assert isinstance(ack, SessionOpenAck)
    assert (ack.status, ack.accepted_profile, ack.schema_id, ack.schema_version) == (
        SessionStatus.OPENED,
        2,
        0x1001,
        3,
    )
    assert (ack.accepted_priority, ack.max_in_flight, ack.granted_operation_credit) == (2, 4, 4)
    assert server.session_ids == (7,)
    generous = only(ask(server, max_in_flight=0), SessionOpenReceived)
    data = server.accept_session(generous, 8, max_in_flight=100, operation_credit=3)
    ack = replies([Reply(data)])[0].metadata
    assert isinstance(ack, SessionOpenAck)
    assert (ack.max_in_flight, ack.granted_operation_credit) == (50, 3)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"priority": 3}, SessionErrorCode.PRIORITY_REJECTED),
        ({"session_flags": 0x10}, SessionErrorCode.LEASE_POLICY_REJECTED),
        ({"profile_id": 1}, SessionErrorCode.PROFILE_UNSUPPORTED),
        ({"profile_id": 0}, SessionErrorCode.SCHEMA_UNSUPPORTED),
        ({"schema_id": 0x1002}, SessionErrorCode.SCHEMA_UNSUPPORTED),
        ({"schema_version": 4}, SessionErrorCode.SCHEMA_UNSUPPORTED),
        ({"auth_bytes": 1, "body": b"x"}, SessionErrorCode.AUTH_FAILED),
        ({"session_extension_bytes": 1, "body": b"x"}, SessionErrorCode.AUTH_FAILED),
        ({"resume_token_bytes": 1, "body": b"x"}, SessionErrorCode.RESUME_REJECTED),
    ],
)
def test_a_session_nobody_could_serve_is_rejected_at_once(
    changes: dict[str, Any], code: SessionErrorCode
) -> None:
    (reply,) = ask(Pair().server, **changes)
    assert acks(reply.data) == [(0, SessionStatus.REJECTED, code)]


def test_the_unbound_profile_is_accepted_too() -> None:
    events = ask(Pair().server, profile_id=0, schema_id=0, schema_version=0)
    assert isinstance(only(events, SessionOpenReceived), SessionOpenReceived)


def test_a_rejection_carries_its_code_and_its_text() -> None:
    server = Pair().server
    request = only(ask(server), SessionOpenReceived)
    data = server.reject_session(request, SessionErrorCode.LIMIT_REACHED, "full")
    assert acks(data) == [(0, SessionStatus.REJECTED, SessionErrorCode.LIMIT_REACHED)]
    assert replies([Reply(data)])[0].body == b"full"


def test_requests_are_answered_once_and_in_their_order() -> None:
    server = Pair().server
    one, two = (only(ask(server), SessionOpenReceived) for _ in range(2))
    with pytest.raises(LocalProtocolError, match="in the order"):
        server.accept_session(two, 2, max_in_flight=1, operation_credit=1)
    server.accept_session(one, 1, max_in_flight=1, operation_credit=1)
    with pytest.raises(LocalProtocolError, match="in the order"):
        server.reject_session(one, SessionErrorCode.LIMIT_REACHED, "")
    server.accept_session(two, 2, max_in_flight=1, operation_credit=1)
    assert server.session_ids == (1, 2)


def test_a_rejection_waits_until_the_requests_before_it_are_answered() -> None:
    server = Pair(Limits(max_sessions=2)).server
    one, two = (only(ask(server), SessionOpenReceived) for _ in range(2))
    assert ask(server) == []
    assert ask(server, priority=3) == []
    assert len(acks(server.reject_session(one, SessionErrorCode.LIMIT_REACHED, ""))) == 1
    data = server.accept_session(two, 5, max_in_flight=1, operation_credit=1)
    assert acks(data) == [
        (5, SessionStatus.OPENED, 0),
        (0, SessionStatus.REJECTED, SessionErrorCode.LIMIT_REACHED),
        (0, SessionStatus.REJECTED, SessionErrorCode.PRIORITY_REJECTED),
    ]


def test_requests_without_end_are_a_limit_exceeded() -> None:
    server = Pair(Limits(max_sessions=2)).server
    for _ in range(4):
        ask(server)
    assert fatal(ask(server)).code == ErrorCode.LIMIT_EXCEEDED


@pytest.mark.parametrize("session_id", [0, -1, 2**32, SESSION])
def test_a_session_id_that_is_none_or_taken_is_not_given(session_id: int) -> None:
    server = with_session().server
    request = only(ask(server), SessionOpenReceived)
    with pytest.raises(LocalProtocolError, match="new session"):
        server.accept_session(request, session_id, max_in_flight=1, operation_credit=1)
    server.accept_session(request, 8, max_in_flight=1, operation_credit=1)


def test_a_session_without_room_is_not_accepted() -> None:
    server = Pair().server
    request = only(ask(server), SessionOpenReceived)
    with pytest.raises(LocalProtocolError, match="below 1"):
        server.accept_session(request, 8, max_in_flight=0, operation_credit=0)
    assert server.session_ids == ()


# --- closing ------------------------------------------------------------------------------------


def test_a_session_close_is_reported_and_acknowledged_once_it_is_empty() -> None:
    pair = with_operation()
    event = only(pair.server.receive(pair.client.close_session(SESSION)), SessionCloseReceived)
    assert event == SessionCloseReceived(SESSION, SessionClose(1, 0, 0, 901, 0, SESSION))
    with pytest.raises(LocalProtocolError, match="in flight"):
        pair.server.acknowledge_session_close(SESSION)
    assert pair.server.abandon_operations(SESSION) == [1]
    assert pair.server.abandon_operations(SESSION) == []
    (ack,) = replies([Reply(pair.server.acknowledge_session_close(SESSION))])
    assert ack.message_type is M.SESSION_CLOSE_ACK
    assert pair.server.session_ids == ()


def test_a_close_nobody_asked_for_is_not_acknowledged() -> None:
    pair = with_session()
    with pytest.raises(LocalProtocolError, match="no END in state OPEN"):
        pair.server.acknowledge_session_close(SESSION)
    with pytest.raises(LocalProtocolError, match="not open"):
        pair.server.acknowledge_session_close(8)


def test_a_second_close_is_refused() -> None:
    server = with_session().server
    server.receive(encode_packet(sample(M.SESSION_CLOSE)))
    error = refused(server.receive(encode_packet(sample(M.SESSION_CLOSE))))
    assert error.code == ErrorCode.INVALID_STATE


def test_a_submit_after_the_close_fails_the_session() -> None:
    server = with_operation().server
    server.receive(encode_packet(sample(M.SESSION_CLOSE)))
    events = server.receive(encode_packet(sample(M.FRAME_SUBMIT, frame_id=2, operation_id=5)))
    failed = first(events, SessionFailed)
    assert (failed.code, failed.frame_ids) == (ErrorCode.INVALID_STATE, (1,))


def test_what_crosses_the_end_of_a_session_is_passed_over_but_a_submit_is_answered() -> None:
    server = with_session().server
    server.receive(encode_packet(sample(M.SESSION_CLOSE)))
    server.acknowledge_session_close(SESSION)
    for kind in (M.CANCEL, M.FRAME_CANCEL, M.TRACE_CONTEXT, M.CREDIT_UPDATE):
        assert server.receive(encode_packet(sample(kind))) == []
    for kind in (M.FRAME_SUBMIT, M.SESSION_CLOSE, M.SESSION_PATCH):
        (error,) = replies(server.receive(encode_packet(sample(kind))))
        assert error.message_type is M.ERROR


def test_a_close_of_the_connection_is_the_last_thing_heard() -> None:
    pair = with_operation()
    close = Packet(M.CLOSE, None, "grüß dich".encode())
    events = pair.server.receive(encode_packet(close) + b"garbage")
    assert events == [ConnectionCloseReceived("grüß dich")]
    assert pair.server.closed
    assert pair.server.receive(b"garbage") == []
    assert pair.server.receive_end() == []
    with pytest.raises(LocalProtocolError, match="closed"):
        pair.server.partial_result(SESSION, 1, b"{}")
    assert pair.server.abandon_operations(SESSION) == [1]


def test_our_own_close_ends_both_directions() -> None:
    pair = with_operation()
    (close,) = replies([Reply(pair.server.close("drained"))])
    assert (close.message_type, close.body) == (M.CLOSE, b"drained")
    assert pair.server.receive(encode_packet(sample(M.PING))) == []
    commands: list[Callable[[], bytes]] = [
        lambda: pair.server.close(),
        lambda: pair.server.partial_result(SESSION, 1, b"{}"),
        lambda: pair.server.push_result(SESSION, 1, None),
        lambda: pair.server.recoverable_error(3, ""),
        lambda: pair.server.acknowledge_session_close(SESSION),
    ]
    for command in commands:
        with pytest.raises(LocalProtocolError, match="closed"):
            command()


def test_a_long_diagnostic_is_cut_between_characters() -> None:
    (close,) = replies([Reply(ServerConnection().close("é" * 2000))])
    assert close.body.decode() == "é" * 512


def test_a_diagnostic_that_is_no_text_is_still_shown() -> None:
    events = ServerConnection().receive(encode_packet(Packet(M.CLOSE, None, b"\xff\xfe")))
    assert events == [ConnectionCloseReceived("\ufffd\ufffd")]


def test_the_end_of_the_stream_between_packets_is_no_fault() -> None:
    server = with_session().server
    assert server.receive_end() == []
    assert server.closed


def test_the_end_of_the_stream_inside_a_packet_is_a_failure() -> None:
    server = with_session().server
    assert server.receive(encode_packet(sample(M.FRAME_SUBMIT))[:-1]) == []
    assert fatal(server.receive_end()).code == ErrorCode.MALFORMED_BODY
    assert server.receive_end() == []


# --- faults -------------------------------------------------------------------------------------


def test_garbage_ends_the_connection_and_nothing_more_is_read() -> None:
    server = with_operation().server
    assert fatal(server.receive(b"x" * 40)).code == ErrorCode.MALFORMED_HEADER
    assert server.closed
    assert server.receive(encode_packet(sample(M.PING))) == []
    assert server.abandon_operations(SESSION) == [1]


def test_what_came_before_a_fault_in_the_same_piece_is_still_handled() -> None:
    events = with_session().server.receive(encode_packet(sample(M.PING)) + b"x" * 40)
    assert [packet.message_type for packet in replies(events)] == [M.PONG, M.ERROR, M.CLOSE]


def test_a_fatal_error_of_the_client_ends_the_connection_without_an_answer() -> None:
    server = with_session().server
    error = sample(M.ERROR, body=b"out of memory", code=12, is_fatal=1, session_id=0)
    failed = only(server.receive(encode_packet(error)), ConnectionFailed)
    assert isinstance(failed.error, RemoteProtocolError)
    assert (failed.error.code, str(failed.error)) == (12, "the client reported: out of memory")
    assert server.closed


def test_a_fatal_session_error_of_the_client_ends_that_session_without_an_answer() -> None:
    pair = with_operation()
    pair.open(8)
    error = sample(M.ERROR, code=12, is_fatal=1, scope=1, related_session=SESSION)
    assert pair.server.receive(encode_packet(error)) == [SessionFailed(SESSION, 12, "", (1,))]
    assert pair.server.session_ids == (8,)


def test_a_recoverable_error_names_the_narrowest_thing_it_is_about() -> None:
    server = with_session().server
    scopes = {
        ErrorScope.CONNECTION: server.recoverable_error(6, "no"),
        ErrorScope.SESSION: server.recoverable_error(6, "no", session_id=7),
        ErrorScope.FRAME: server.recoverable_error(
            6, "no", session_id=7, frame_id=2, retry_after_ms=50
        ),
    }
    for scope, data in scopes.items():
        assert refused([Reply(data)]).scope == scope
    error = refused([Reply(scopes[ErrorScope.FRAME])])
    assert (error.related_session, error.related_frame, error.retry_after_ms) == (7, 2, 50)
    assert error.source_role == 2
