"""TLS and WebSocket as layers: the same bytes in whatever pieces, and no error of any bytes."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnrp_sched.transport.layer import Layer, Layers
from nnrp_sched.transport.security import client_context, server_context
from nnrp_sched.transport.tls_layer import TlsLayer
from nnrp_sched.transport.websocket_layer import ClientWebSocketLayer, ServerWebSocketLayer
from tests.support.carriers import client_security, packet, server_security

LIMIT = 1024 * 1024
KINDS = ("tls", "ws", "wss")
SERVER_TLS, CLIENT_TLS = server_context(server_security()), client_context(client_security())


def both_ends(kind: str) -> tuple[Layers, Layers]:
    """The layers of a client and of a server."""
    client: list[Layer] = []
    server: list[Layer] = []
    if kind != "ws":
        client.append(TlsLayer(CLIENT_TLS, server=False, server_name="localhost"))
        server.append(TlsLayer(SERVER_TLS, server=True))
    if kind != "tls":
        client.append(ClientWebSocketLayer("ws://localhost:1/nnrp", max_message_bytes=LIMIT))
        server.append(ServerWebSocketLayer("/nnrp", max_message_bytes=LIMIT))
    return Layers(client), Layers(server)


def pieces(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The bytes, cut into pieces of these sizes in turns."""
    found: list[bytes] = []
    turn = 0
    while data:
        size = sizes[turn % len(sizes)]
        found.append(data[:size])
        data, turn = data[size:], turn + 1
    return found


def opened(kind: str, sizes: Sequence[int]) -> tuple[Layers, Layers]:
    """Both ends with their handshakes done, every byte of which came in such pieces."""
    client, server = both_ends(kind)
    there, back = client.send(), b""
    while there or back:
        for piece in pieces(there, sizes):
            assert server.receive(piece) == b""
        back = server.send()
        for piece in pieces(back, sizes):
            assert client.receive(piece) == b""
        there = client.send()
    assert client.ready
    assert server.ready
    return client, server


SIZES = st.lists(st.integers(1, 3000), min_size=1, max_size=5)


@pytest.mark.parametrize("kind", KINDS)
@given(sizes=SIZES, contents=st.lists(st.binary(max_size=5000), min_size=1, max_size=5))
@settings(max_examples=15, deadline=None)
def test_bytes_arrive_as_they_were_sent_in_whatever_pieces(
    kind: str, sizes: list[int], contents: list[bytes]
) -> None:
    client, server = opened(kind, sizes)
    sent = b"".join(map(packet, contents))
    for sender, receiver in ((client, server), (server, client)):
        taken = b"".join(receiver.receive(piece) for piece in pieces(sender.send(sent), sizes))
        assert taken == sent
    for piece in pieces(client.close(), sizes):
        server.receive(piece)
    assert server.ended
    assert server.problem == ""


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(min_size=1, max_size=2000), sizes=SIZES)
@settings(max_examples=25, deadline=None)
def test_any_bytes_instead_of_a_handshake_harm_nobody(
    kind: str, data: bytes, sizes: list[int]
) -> None:
    _, server = both_ends(kind)
    for piece in pieces(data, sizes):
        assert server.receive(piece) == b""
        server.send()
    assert not server.ready
    server.close()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(min_size=1, max_size=2000), place=st.integers(0, 200))
@settings(max_examples=25, deadline=None)
def test_any_bytes_in_the_middle_end_the_layer_or_wait_for_more(
    kind: str, data: bytes, place: int
) -> None:
    client, server = opened(kind, [1000])
    sealed = client.send(packet(b"a packet of some length" * 5))
    broken = sealed[:place] + data + sealed[place:]
    server.receive(broken)
    server.send()
    server.receive(client.send(packet(b"after")))
    server.close()
    assert server.receive(b"more") == b"" or not server.ended


FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "a byte is changed": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a byte is missing": lambda data: data[1:],
    "it comes again": lambda data: data + data,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_tls_takes_nothing_that_somebody_on_the_way_has_touched(fault: str) -> None:
    client, server = opened("tls", [10_000])
    sealed = client.send(packet(b"precious"))
    taken = server.receive(FAULTS[fault](sealed))
    assert taken in (b"", packet(b"precious"))
    assert server.ended or taken == b""
    assert server.receive(client.send(packet(b"after"))) == b""
    assert server.problem.startswith("TLS: ")
