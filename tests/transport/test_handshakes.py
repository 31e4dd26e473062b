"""Handshakes that are slow, silent or nonsense: they end, and nobody else waits for them."""

import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.abc
import pytest

from nnrp_sched.transport import (
    Carrier,
    Endpoint,
    ListenLimits,
    background_tasks,
    connect_carrier,
    listen,
    parse_endpoint,
)
from nnrp_sched.transport.layered_carrier import LayeredCarrier
from tests.support.carriers import ENDPOINTS, SECONDS, client_security, packet, server_security

pytestmark = pytest.mark.anyio
each_kind = pytest.mark.parametrize("kind", ["tls", "ws", "wss"])


async def echo(carrier: Carrier) -> None:
    """Send back what comes."""
    while data := await carrier.receive():
        await carrier.send(data)


@asynccontextmanager
async def listening(kind: str, limits: ListenLimits) -> AsyncGenerator[Endpoint]:
    """An echo server."""
    with anyio.fail_after(SECONDS):
        listener = await listen(parse_endpoint(ENDPOINTS[kind]), server_security(), limits)
        async with background_tasks() as tasks:
            tasks.start_soon(listener.serve, echo)
            yield listener.endpoint
            await listener.aclose()


async def answers(endpoint: Endpoint) -> bool:
    """Whether a well-behaved client is served."""
    carrier = await connect_carrier(endpoint, client_security())
    await carrier.send(packet(b"hello"))
    answered = await carrier.receive() == packet(b"hello")
    await carrier.aclose()
    return answered


async def until_closed(stream: anyio.abc.ByteStream) -> bytes:
    """All that a server says until it closes."""
    said = b""
    try:
        while True:
            said += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return said


@each_kind
@pytest.mark.parametrize("beginning", [b"", b"\x16\x03\x01", b"GET /nnrp HTTP/1.1\r\nHost: "])
async def test_clients_that_stop_in_their_handshake_delay_nobody(
    kind: str, beginning: bytes
) -> None:
    limits = ListenLimits(handshake_seconds=SECONDS)
    async with listening(kind, limits) as endpoint, AsyncExitStack() as stack:
        for _ in range(50):
            silent = await anyio.connect_tcp(endpoint.host, endpoint.port)
            await stack.enter_async_context(silent)
            if beginning:
                await silent.send(beginning)
        assert await answers(endpoint)


@each_kind
async def test_a_silent_handshake_ends_in_time(kind: str) -> None:
    async with (
        listening(kind, ListenLimits(handshake_seconds=0.1)) as endpoint,
        await anyio.connect_tcp(endpoint.host, endpoint.port) as silent,
    ):
        assert await until_closed(silent) == b""


@each_kind
async def test_a_handshake_that_goes_on_byte_by_byte_ends_in_time_too(kind: str) -> None:
    async with (
        listening(kind, ListenLimits(handshake_seconds=0.3)) as endpoint,
        await anyio.connect_tcp(endpoint.host, endpoint.port) as slow,
    ):
        # A record of TLS that wants 512 bytes, a request that goes on and on.
        drip = b"\x16\x03\x01\x02\x00" + bytes(500) if kind != "ws" else b"GET /" + b"a" * 500
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            for place in range(len(drip)):
                await slow.send(drip[place : place + 1])
                with anyio.move_on_after(0.01):
                    await slow.receive()


@each_kind
@pytest.mark.parametrize("nonsense", [b"\x00" * 300, b"NNRP" * 100, b"\xff\r\n\r\n" * 50])
async def test_nonsense_instead_of_a_handshake_ends_the_connection_and_no_other(
    kind: str, nonsense: bytes
) -> None:
    # Some of it could still become a request, and is given up only with its time.
    async with listening(kind, ListenLimits(handshake_seconds=0.5)) as endpoint:
        async with await anyio.connect_tcp(endpoint.host, endpoint.port) as stranger:
            await stranger.send(nonsense)
            await until_closed(stranger)
        assert await answers(endpoint)


@each_kind
async def test_handshakes_beyond_the_bound_are_turned_away_until_there_is_room(kind: str) -> None:
    limits = ListenLimits(handshake_seconds=SECONDS, max_handshakes=3)
    async with listening(kind, limits) as endpoint:
        places = [await anyio.connect_tcp(endpoint.host, endpoint.port) for _ in range(3)]
        with anyio.fail_after(SECONDS):
            while True:
                async with await anyio.connect_tcp(endpoint.host, endpoint.port) as fourth:
                    with anyio.move_on_after(0.2):
                        await until_closed(fourth)
                        break
        for place in places:
            await place.aclose()
        assert await answers(endpoint)


async def test_a_plain_client_at_an_encrypted_endpoint_ends_soon() -> None:
    async with listening("tls", ListenLimits()) as endpoint:
        plain = await connect_carrier(Endpoint("tcp", endpoint.host, endpoint.port))
        await plain.send(packet(b"hello"))
        assert packet(b"hello") not in await plain.receive()
        assert await plain.receive() == b""
        await plain.aclose()


# --- QUIC, whose handshakes come in datagrams -----------------------------------------------------


async def test_datagrams_that_are_no_quic_harm_nobody() -> None:
    async with listening("quic", ListenLimits()) as endpoint:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for size in (0, 1, 20, 1200, 9000):
                stranger.sendto(b"\xc0" + bytes(size), (endpoint.host, endpoint.port))
                stranger.sendto(bytes(size), (endpoint.host, endpoint.port))
        assert await answers(endpoint)


async def test_quic_clients_that_stop_after_their_first_datagram_delay_nobody() -> None:
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.connection import QuicConnection

    async with listening("quic", ListenLimits(max_handshakes=4)) as endpoint:
        address = (endpoint.host, endpoint.port)
        for _ in range(20):
            # Each from an address of its own; as none answers the Retry, none takes a place.
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
                quic = QuicConnection(configuration=QuicConfiguration(server_name="localhost"))
                quic.connect(address, now=0.0)
                for datagram, _address in quic.datagrams_to_send(now=0.0):
                    silent.sendto(datagram, address)
        assert await answers(endpoint)


@each_kind
async def test_a_fault_of_ours_in_one_handshake_leaves_the_listener_to_the_others(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(kind, ListenLimits()) as endpoint:
        healthy = LayeredCarrier.open

        async def fault(_carrier: LayeredCarrier) -> None:
            monkeypatch.setattr(LayeredCarrier, "open", healthy)
            raise RuntimeError("injected")

        monkeypatch.setattr(LayeredCarrier, "open", fault)
        async with await anyio.connect_tcp(endpoint.host, endpoint.port) as unlucky:
            assert await until_closed(unlucky) == b""
        assert await answers(endpoint)
    assert "injected" in caplog.text
