"""Every carrier does the same: bytes in order, bounded, one end of the stream."""

import socket
from contextlib import AsyncExitStack, suppress
from functools import cache
from pathlib import Path

import anyio
import pytest

from nnrp_sched.errors import ConnectionLost
from nnrp_sched.transport import Carrier, memory_pair
from nnrp_sched.transport.socket_carrier import SocketCarrier
from tests.support.carriers import ENDPOINTS, NAMES, SOCKETS, bodies, joined, packet, read_all

pytestmark = pytest.mark.anyio
SECONDS = 20

each_kind = pytest.mark.parametrize("kind", ["memory", *ENDPOINTS])


@cache
def large(kind: str) -> bytes:
    """More than the buffers on the way hold: 16 MiB, and 4 MiB where the window is ours."""
    return packet(bytes(range(256)) * 4096) * (4 if kind == "quic" else 16)


@each_kind
async def test_bytes_arrive_in_order_in_both_directions(kind: str, tmp_path: Path) -> None:
    async with joined(kind, tmp_path) as (client, server):
        assert client.name == server.name == NAMES.get(kind, kind)
        words = [b"one", b"two", b"three"]
        expected = b"".join(map(packet, words))
        for sender, receiver in ((client, server), (server, client)):
            for word in words:
                await sender.send(packet(word))
            received = b""
            while len(received) < len(expected):
                received += await receiver.receive()
            assert bodies(received) == words


@each_kind
async def test_a_large_send_arrives_whole(kind: str, tmp_path: Path) -> None:
    async with joined(kind, tmp_path) as (client, server), anyio.create_task_group() as tasks:

        async def send_and_close() -> None:
            await client.send(large(kind))
            await client.aclose()

        tasks.start_soon(send_and_close)
        assert await read_all(server) == large(kind)


@each_kind
async def test_large_sends_in_both_directions_do_not_block_each_other(
    kind: str, tmp_path: Path
) -> None:
    sizes: dict[Carrier, int] = {}
    async with joined(kind, tmp_path) as (client, server), anyio.create_task_group() as tasks:
        sizes.update({client: 0, server: 0})

        async def read(carrier: Carrier) -> None:
            while sizes[carrier] < len(large(kind)):
                sizes[carrier] += len(await carrier.receive())

        for carrier in (client, server):
            tasks.start_soon(carrier.send, large(kind))
            tasks.start_soon(read, carrier)
    assert set(sizes.values()) == {len(large(kind))}


@each_kind
async def test_a_sender_waits_for_a_reader_that_does_not_read(kind: str, tmp_path: Path) -> None:
    async with joined(kind, tmp_path) as (client, server):
        with anyio.move_on_after(0.3) as patience:
            await client.send(large(kind))
        assert patience.cancelled_caught
        assert await server.receive()


@each_kind
async def test_what_was_sent_before_a_close_still_arrives(kind: str, tmp_path: Path) -> None:
    async with joined(kind, tmp_path) as (client, server):
        await client.send(packet(b"last words"))
        await client.aclose()
        assert bodies(await read_all(server)) == [b"last words"]
        assert await server.receive() == b""


@each_kind
async def test_a_close_ends_a_waiting_receive_on_both_ends(kind: str, tmp_path: Path) -> None:
    ends: list[bytes] = []
    async with joined(kind, tmp_path) as (client, server), anyio.create_task_group() as tasks:

        async def receive(carrier: Carrier) -> None:
            ends.append(await carrier.receive())

        tasks.start_soon(receive, client)
        tasks.start_soon(receive, server)
        await anyio.wait_all_tasks_blocked()
        await client.aclose()
    assert ends == [b"", b""]


@each_kind
async def test_a_send_on_a_closed_carrier_is_a_lost_connection(kind: str, tmp_path: Path) -> None:
    async with joined(kind, tmp_path) as (client, server):
        await client.aclose()
        await client.aclose()
        with pytest.raises(ConnectionLost):
            await client.send(packet(b"x"))
        assert await client.receive() == b""
        assert await read_all(server) == b""
        with pytest.raises(ConnectionLost):
            # The first sends may go to a socket that does not know yet that nobody listens.
            while True:
                await server.send(packet(b"x" * 65536))
        assert await server.receive() == b""


@each_kind
async def test_a_send_while_the_carrier_closes_is_a_lost_connection(
    kind: str, tmp_path: Path
) -> None:
    async with joined(kind, tmp_path) as (client, _server), anyio.create_task_group() as tasks:
        tasks.start_soon(client.aclose)  # Waits for the other end to close too.
        await anyio.lowlevel.checkpoint()
        assert client.write(packet(b"too late"))
        with pytest.raises(ConnectionLost):
            await client.send(packet(b"too late"))


@each_kind
async def test_a_close_ends_a_send_that_waits(kind: str, tmp_path: Path) -> None:
    async with joined(kind, tmp_path) as (client, server), anyio.create_task_group() as tasks:
        ended = anyio.Event()

        async def send() -> None:
            # A closing socket takes bytes for a moment, so that a few may still seem to arrive.
            with suppress(ConnectionLost):
                await client.send(large(kind))
            ended.set()

        tasks.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        assert not ended.is_set()
        await server.aclose()
        await ended.wait()


@pytest.mark.parametrize("kind", SOCKETS)
async def test_last_words_arrive_although_the_closing_side_left_bytes_unread(
    kind: str, tmp_path: Path
) -> None:
    async with joined(kind, tmp_path) as (client, server), anyio.create_task_group() as tasks:
        await client.send(packet(b"x" * 100_000))
        await server.receive()
        await client.send(packet(b"x" * 100_000))
        await server.send(packet(b"last words"))
        tasks.start_soon(server.aclose)
        assert bodies(await read_all(client)) == [b"last words"]
        await client.aclose()


@each_kind
async def test_a_cancelled_receive_loses_no_bytes(kind: str, tmp_path: Path) -> None:
    async with joined(kind, tmp_path) as (client, server):
        with anyio.move_on_after(0.05) as patience:
            await server.receive()
        assert patience.cancelled_caught
        await client.send(packet(b"after"))
        assert bodies(await server.receive()) == [b"after"]


def raw_socket(carrier: Carrier) -> socket.socket:
    """The socket beneath a socket carrier."""
    assert isinstance(carrier, SocketCarrier)
    found: socket.socket = carrier.transport.get_extra_info("socket")
    return found


@pytest.mark.parametrize("kind", ["tcp", "tls", "ws", "wss"])
async def test_both_ends_of_a_tcp_connection_send_without_delay(kind: str, tmp_path: Path) -> None:
    async with joined(kind, tmp_path) as carriers:
        for carrier in carriers:
            options = raw_socket(carrier).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert options != 0
            assert raw_socket(carrier).getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0


@pytest.mark.parametrize("kind", SOCKETS)
async def test_a_peer_that_sends_no_more_can_still_be_answered(kind: str, tmp_path: Path) -> None:
    async with joined(kind, tmp_path) as (client, server):
        await client.send(packet(b"question"))
        raw_socket(client).shutdown(socket.SHUT_WR)
        assert bodies(await read_all(server)) == [b"question"]
        await server.send(packet(b"answer"))
        assert bodies(await client.receive()) == [b"answer"]


@pytest.mark.parametrize("kind", ["tcp", "tls", "ws", "wss"])
async def test_a_reset_is_an_end_of_the_stream(kind: str, tmp_path: Path) -> None:
    async with joined(kind, tmp_path) as (client, server):
        await client.send(packet(b"x"))
        assert bodies(await server.receive()) == [b"x"]
        reset = raw_socket(client)
        # Linger 0 makes the close a reset.
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        await client.aclose()
        assert await server.receive() == b""
        with pytest.raises(ConnectionLost):
            while True:
                await server.send(packet(b"x" * 65536))


@each_kind
async def test_many_small_pieces_arrive_in_order(kind: str, tmp_path: Path) -> None:
    pieces = [packet(b"%d" % number) for number in range(2000)]
    async with joined(kind, tmp_path) as (client, server), anyio.create_task_group() as tasks:

        async def send() -> None:
            for piece in pieces:
                await client.send(piece)
            await client.aclose()

        tasks.start_soon(send)
        assert await read_all(server) == b"".join(pieces)


async def test_a_memory_pair_holds_a_bounded_number_of_bytes() -> None:
    ours, theirs = memory_pair()
    sent = 0
    with anyio.move_on_after(0.3) as patience:
        while True:
            await ours.send(bytes(65536))
            sent += 65536
    assert patience.cancelled_caught
    assert sent <= 2 * 1024 * 1024
    with anyio.fail_after(SECONDS):
        await ours.aclose()
        assert len(await read_all(theirs)) >= sent


async def test_many_connections_are_open_at_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        directories = [tmp_path / str(number) for number in range(20)]
        for directory in directories:
            directory.mkdir()
        pairs = [
            await stack.enter_async_context(joined("unix", directory)) for directory in directories
        ]
        for number, (client, server) in enumerate(pairs):
            await client.send(b"%d" % number)
            assert await server.receive() == b"%d" % number
