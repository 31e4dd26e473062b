"""The token in the auth bytes of CLIENT_HELLO (wire digest 2.1, 6-21)."""

import pytest

from nnrp_sched.wire import (
    Authentication,
    ClientConnection,
    ConnectionFailed,
    ErrorCode,
    HelloReceived,
    Limits,
    MessageType,
    Packet,
    Reply,
    ServerConnection,
    encode_packet,
)
from nnrp_sched.wire.authentication import UNKNOWN_PEER_BYTES

TOKEN = b"a-secret"
WANTED = Authentication(TOKEN)


def said(token: bytes, authentication: Authentication) -> list[object]:
    """What a server makes of a client's hello."""
    server = ServerConnection(authentication=authentication)
    return list(server.receive(ClientConnection().hello(token)))


def failure(events: list[object]) -> ConnectionFailed:
    """The end of the connection; nothing was accepted before it."""
    assert not any(isinstance(event, HelloReceived) for event in events)
    (failed,) = [event for event in events if isinstance(event, ConnectionFailed)]
    return failed


def test_the_token_opens_the_connection() -> None:
    assert any(isinstance(event, HelloReceived) for event in said(TOKEN, WANTED))


@pytest.mark.parametrize(
    "token", [b"", b"a-secre", b"a-secret ", b"A-SECRET", b"\xff" * 8, b"x" * 4096]
)
def test_anything_else_is_refused_as_unauthenticated(token: bytes) -> None:
    assert failure(said(token, WANTED)).error.code == ErrorCode.AUTH_FAILED


def test_a_refusal_does_not_tell_what_would_have_been_right() -> None:
    events = said(b"wrong", WANTED)
    replies = b"".join(event.data for event in events if isinstance(event, Reply))
    assert b"the token is not this server's" in replies
    assert TOKEN not in replies


@pytest.mark.parametrize("token", [b"", b"wrong", TOKEN])
def test_a_peer_that_the_carrier_knows_may_say_what_it_likes(token: bytes) -> None:
    events = said(token, Authentication(TOKEN, known=True))
    assert any(isinstance(event, HelloReceived) for event in events)


def test_a_server_without_a_token_takes_none() -> None:
    assert failure(said(TOKEN, Authentication())).error.code == ErrorCode.UNSUPPORTED_CAPABILITY
    assert any(isinstance(event, HelloReceived) for event in said(b"", Authentication()))


def test_a_session_is_not_opened_before_the_token_was_said() -> None:
    client = ClientConnection()
    client.receive(_acknowledged(client))
    server = ServerConnection(authentication=WANTED)
    events = list(server.receive(client.open_session()))
    assert failure(list(events)).error.code == ErrorCode.INVALID_STATE


def _acknowledged(client: ClientConnection) -> bytes:
    events = ServerConnection().receive(client.hello())
    return b"".join(event.data for event in events if isinstance(event, Reply))


def test_a_stranger_cannot_make_the_server_wait_for_a_large_packet() -> None:
    probe = encode_packet(Packet(MessageType.CLOSE, body=bytes(UNKNOWN_PEER_BYTES)))
    server = ServerConnection(authentication=WANTED)
    assert failure(list(server.receive(probe[:64]))).error.code == ErrorCode.LIMIT_EXCEEDED
    known = ServerConnection(Limits(), authentication=Authentication(TOKEN, known=True))
    assert known.receive(probe[:64]) == []


def test_after_the_token_packets_may_be_large() -> None:
    server = ServerConnection(authentication=WANTED)
    server.receive(ClientConnection().hello(TOKEN))
    close = encode_packet(Packet(MessageType.CLOSE, body=bytes(UNKNOWN_PEER_BYTES)))
    assert server.receive(close[:64]) == []
