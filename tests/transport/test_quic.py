"""QUIC: one stream, and every way in which it or its connection may end."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent

from nnrp_sched.errors import ConnectionLost, PeerUnreachable
from nnrp_sched.transport import (
    Carrier,
    Endpoint,
    ListenLimits,
    background_tasks,
    connect_carrier,
    listen,
    parse_endpoint,
    quic_carrier,
    quic_listener,
)
from nnrp_sched.transport.quic_carrier import QuicCarrier
from nnrp_sched.transport.quic_window import WINDOW_BYTES
from tests.support.carriers import (
    SECONDS,
    bodies,
    client_security,
    joined,
    packet,
    read_all,
    server_security,
)
from tests.support.certificates import certificates

pytestmark = pytest.mark.anyio
# aioquic declares one of its parameters as a callable of unknown form.
aioquic_client: Any = import_module("aioquic.asyncio.client")
ANY_PORT = parse_endpoint("quic://127.0.0.1:0")


class Peer(QuicConnectionProtocol):
    """A client of aioquic itself, which may break the rules."""

    terminated: ConnectionTerminated | None = None

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            self.terminated = event

    def send(self, stream_id: int, data: bytes) -> None:
        self._quic.send_stream_data(stream_id, data)
        self.transmit()

    def reset(self, stream_id: int) -> None:
        self._quic.reset_stream(stream_id, 7)
        self.transmit()

    def stop(self, stream_id: int) -> None:
        self._quic.stop_stream(stream_id, 8)
        self.transmit()

    def vanish(self) -> None:
        """Say nothing more, not even goodbye."""
        transport: Any = self._transport
        transport.sendto = _nowhere


def _nowhere(_data: bytes, _address: object) -> None:
    """Where the datagrams of the vanished go."""


class Served:
    """A QUIC server that hands its connections to the test."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.carriers: list[Carrier] = []
        self.arrived = anyio.Event()
        self.finished = anyio.Event()

    async def take(self, carrier: Carrier) -> None:
        self.carriers.append(carrier)
        self.arrived.set()
        await self.finished.wait()

    @asynccontextmanager
    async def peer(self) -> AsyncGenerator[tuple[Peer, Carrier]]:
        """A client of aioquic's, and the server's end of its connection."""
        configuration = QuicConfiguration(is_client=True, server_name="localhost")
        configuration.load_verify_locations(cafile=str(certificates().authority))
        async with aioquic_client.connect(
            self.endpoint.host,
            self.endpoint.port,
            configuration=configuration,
            create_protocol=Peer,
        ) as peer:
            assert isinstance(peer, Peer)
            await self.arrived.wait()
            yield peer, self.carriers[0]


@asynccontextmanager
async def serving() -> AsyncGenerator[Served]:
    with anyio.fail_after(SECONDS):
        listener = await listen(ANY_PORT, server_security(), ListenLimits())
        served = Served(listener.endpoint)
        async with background_tasks() as tasks:
            tasks.start_soon(listener.serve, served.take)
            yield served
            served.finished.set()
            await listener.aclose()


async def test_a_reset_of_the_stream_ends_it_and_says_so() -> None:
    async with serving() as served, served.peer() as (peer, carrier):
        peer.send(0, packet(b"before"))
        assert bodies(await carrier.receive()) == [b"before"]
        peer.reset(0)
        assert await carrier.receive() == b""
        assert "reset the stream" in carrier.problem
        with pytest.raises(ConnectionLost):
            await carrier.send(packet(b"after"))


async def test_a_peer_that_wants_no_more_ends_the_stream_and_wakes_who_waits_for_it() -> None:
    async with serving() as served, served.peer() as (peer, carrier):
        peer.send(0, packet(b"before"))
        assert bodies(await carrier.receive()) == [b"before"]
        async with anyio.create_task_group() as tasks:

            async def send() -> None:
                with pytest.raises(ConnectionLost):
                    await carrier.send(packet(bytes(8 * 1024 * 1024)))

            tasks.start_soon(send)
            await anyio.lowlevel.checkpoint()
            peer.stop(0)
        assert await carrier.receive() == b""
        assert "reads no more" in carrier.problem


async def test_a_second_stream_ends_the_connection() -> None:
    async with serving() as served, served.peer() as (peer, carrier):
        peer.send(0, packet(b"first"))
        assert bodies(await carrier.receive()) == [b"first"]
        peer.send(4, packet(b"second"))
        assert await read_all(carrier) == b""
        assert "second stream" in carrier.problem
        await peer.wait_closed()
        assert peer.terminated is not None
        assert "second stream" in peer.terminated.reason_phrase


async def test_a_stream_in_one_direction_is_no_connection_either() -> None:
    async with serving() as served, served.peer() as (peer, carrier):
        peer.send(2, packet(b"one way"))
        assert await read_all(carrier) == b""
        await peer.wait_closed()


async def test_a_peer_that_vanishes_is_noticed_by_its_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quic_listener, "IDLE_SECONDS", 0.5)
    async with serving() as served, served.peer() as (peer, carrier):
        peer.send(0, packet(b"last words"))
        assert bodies(await carrier.receive()) == [b"last words"]
        peer.vanish()
        assert await carrier.receive() == b""


async def test_a_connection_without_traffic_lives_by_its_pings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(quic_listener, "IDLE_SECONDS", 0.6)
    monkeypatch.setattr(quic_carrier, "PING_SECONDS", 0.1)
    async with joined("quic", tmp_path) as (client, server):
        with anyio.move_on_after(1.5) as patience:
            await server.receive()
        assert patience.cancelled_caught
        await client.send(packet(b"still here"))
        assert bodies(await server.receive()) == [b"still here"]


async def test_an_absent_server_is_noticed_at_once() -> None:
    listener = await listen(ANY_PORT, server_security())
    await listener.aclose()
    with anyio.fail_after(5), pytest.raises(PeerUnreachable, match="nobody is at the port"):
        await connect_carrier(listener.endpoint, client_security())


async def test_a_server_may_speak_before_its_client_has_opened_the_stream(tmp_path: Path) -> None:
    async with joined("quic", tmp_path) as (client, server):
        await server.send(packet(b"early"))
        await client.send(packet(b"hello"))
        assert bodies(await client.receive()) == [b"early"]


async def test_the_window_follows_the_reader_and_does_not_grow(tmp_path: Path) -> None:
    piece = packet(bytes(64 * 1024 - 40))
    async with joined("quic", tmp_path) as (client, server), anyio.create_task_group() as tasks:
        assert isinstance(server, QuicCarrier)
        sent = read = 0

        async def send() -> None:
            nonlocal sent
            while True:
                await client.send(piece)
                sent += len(piece)

        tasks.start_soon(send)
        while read < 4 * WINDOW_BYTES:
            read += len(await server.receive())
        # Nobody reads any more: what arrives from now on is one window, however much came before.
        with anyio.move_on_after(1.0):
            await anyio.sleep_forever()
        assert server.waiting_bytes <= WINDOW_BYTES + WINDOW_BYTES // 4
        tasks.cancel_scope.cancel()
