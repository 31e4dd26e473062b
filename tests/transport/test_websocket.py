"""WebSocket: one packet in a binary message, whatever else its frames may hold."""

import base64
import os
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from websockets.frames import Frame, Opcode

from nnrp_sched.errors import PeerUnreachable
from nnrp_sched.transport import (
    Carrier,
    Endpoint,
    ListenLimits,
    ServerSecurity,
    background_tasks,
    connect_carrier,
    listen,
    parse_endpoint,
)
from nnrp_sched.transport.layered_carrier import LayeredCarrier
from nnrp_sched.transport.websocket_layer import split_packets
from nnrp_sched.wire import ClientConnection
from tests.support.carriers import SECONDS, bodies, joined, packet, read_all

pytestmark = pytest.mark.anyio


class Peer:
    """A client that makes its frames itself, and may break the rules."""

    def __init__(self, stream: anyio.abc.SocketStream, answer: str) -> None:
        """`answer` is what the server said to the request."""
        self.stream = stream
        self.answer = answer
        self._pending = b""

    async def frame(
        self, opcode: Opcode, data: bytes, *, fin: bool = True, mask: bool = True
    ) -> None:
        """Send one frame."""
        await self.stream.send(Frame(opcode, data, fin).serialize(mask=mask))

    async def close_code(self) -> int:
        """The code of the server's close frame; other frames before it are passed over."""
        with anyio.fail_after(SECONDS):
            while True:
                opcode, payload = await self.next_frame()
                if opcode == Opcode.CLOSE:
                    return int.from_bytes(payload[:2], "big")

    async def next_frame(self) -> tuple[int, bytes]:
        """The code and the data of the next frame."""
        head = await self._exactly(2)
        size = head[1] & 0x7F
        if size > 125:
            size = int.from_bytes(await self._exactly(2 if size == 126 else 8), "big")
        return head[0] & 0xF, await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        while len(self._pending) < size:
            self._pending += await self.stream.receive()
        data, self._pending = self._pending[:size], self._pending[size:]
        return data


class Served:
    """A WebSocket server that notes what arrives."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.packets: list[bytes] = []
        self.ended = anyio.Event()
        self.arrived = anyio.Event()
        self.known: list[bool] = []

    async def take(self, carrier: Carrier) -> None:
        """Note the packets of one connection."""
        self.known.append(carrier.authenticated)
        while data := await carrier.receive():
            self.packets += bodies(data)
            self.arrived.set()
        self.ended.set()

    async def until(self, count: int) -> None:
        """Wait for so many packets."""
        with anyio.fail_after(SECONDS):
            while len(self.packets) < count:
                await anyio.lowlevel.checkpoint()

    @asynccontextmanager
    async def upgraded(self, *headers: str) -> AsyncGenerator[Peer]:
        """A connection with its upgrade done."""
        async with await anyio.connect_tcp(self.endpoint.host, self.endpoint.port) as stream:
            await stream.send(request(self.endpoint.path, *headers))
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += await stream.receive()
            assert answer.startswith(b"HTTP/1.1 101 ")
            yield Peer(stream, answer.decode())

    async def refusal(self, path: str, *headers: str) -> str:
        """The answer to a request that is refused, to its end."""
        async with await anyio.connect_tcp(self.endpoint.host, self.endpoint.port) as stream:
            await stream.send(request(path, *headers))
            answer = b""
            with anyio.fail_after(SECONDS):
                try:
                    while True:
                        answer += await stream.receive()
                except anyio.EndOfStream:
                    return answer.decode()


def request(path: str, *headers: str) -> bytes:
    """The request for an upgrade."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@asynccontextmanager
async def serving(
    security: ServerSecurity | None = None, limits: ListenLimits | None = None
) -> AsyncGenerator[Served]:
    with anyio.fail_after(SECONDS):
        listener = await listen(
            parse_endpoint("ws://127.0.0.1:0/nnrp"),
            security or ServerSecurity(),
            limits or ListenLimits(),
        )
        served = Served(listener.endpoint)
        async with background_tasks() as tasks:
            tasks.start_soon(listener.serve, served.take)
            yield served
            await listener.aclose()


# --- messages -----------------------------------------------------------------------------------


async def test_a_message_in_fragments_is_one_packet_and_pings_may_come_between() -> None:
    data = packet(b"in pieces")
    async with serving() as served, served.upgraded() as peer:
        await peer.frame(Opcode.BINARY, data[:3], fin=False)
        await peer.frame(Opcode.PING, b"still there?")
        await peer.frame(Opcode.CONT, b"", fin=False)
        await peer.frame(Opcode.CONT, data[3:40], fin=False)
        await peer.frame(Opcode.CONT, data[40:])
        await served.arrived.wait()
        assert served.packets == [b"in pieces"]


async def test_a_message_with_a_byte_in_each_fragment_takes_no_more_room_than_its_bytes() -> None:
    data = packet(bytes(5_000))
    frames = b"".join(
        Frame(Opcode.CONT if place else Opcode.BINARY, data[place : place + 1], False).serialize(
            mask=True
        )
        for place in range(len(data))
    )
    async with serving() as served, served.upgraded() as peer:
        tracemalloc.start()
        try:
            await peer.stream.send(frames)
            await peer.frame(Opcode.PING, b"")
            await peer.next_frame()  # The pong: all was read.
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert served.packets == []
        assert held < 200_000  # An object a byte would be several times as much.


BROKEN: dict[str, tuple[list[tuple[Opcode, bytes, bool, bool]], int]] = {
    "text": ([(Opcode.TEXT, b"hello", True, True)], 1003),
    "text in fragments": ([(Opcode.TEXT, b"he", False, True)], 1003),
    "two packets": ([(Opcode.BINARY, packet(b"a") + packet(b"b"), True, True)], 1002),
    "half a packet": ([(Opcode.BINARY, packet(b"abc")[:-1], True, True)], 1002),
    "a packet and a byte": ([(Opcode.BINARY, packet(b"abc") + b"x", True, True)], 1002),
    "less than a header": ([(Opcode.BINARY, b"NNRP", True, True)], 1002),
    "nothing": ([(Opcode.BINARY, b"", True, True)], 1002),
    "no mask": ([(Opcode.BINARY, packet(b"a"), True, False)], 1002),
    "a continuation of nothing": ([(Opcode.CONT, packet(b"a"), True, True)], 1002),
    "a message inside a message": (
        [(Opcode.BINARY, b"N", False, True), (Opcode.BINARY, packet(b"a"), True, True)],
        1002,
    ),
    "a message over the limit": ([(Opcode.BINARY, packet(bytes(5000)), True, True)], 1009),
    "fragments over the limit": (
        [(Opcode.BINARY, bytes(900), False, True)] + 5 * [(Opcode.CONT, bytes(900), False, True)],
        1009,
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_what_is_no_packet_ends_the_connection_with_the_code_that_says_why(
    fault: str,
) -> None:
    frames, code = BROKEN[fault]
    limits = ListenLimits(max_packet_bytes=4096)
    async with serving(limits=limits) as served, served.upgraded() as peer:
        await peer.frame(Opcode.BINARY, packet(b"before"))
        for opcode, data, fin, mask in frames:
            await peer.frame(opcode, data, fin=fin, mask=mask)
        assert await peer.close_code() == code
        await served.ended.wait()
        assert served.packets == [b"before"]


async def test_a_message_just_within_the_limit_is_taken() -> None:
    limits = ListenLimits(max_packet_bytes=4096)
    async with serving(limits=limits) as served, served.upgraded() as peer:
        await peer.frame(Opcode.BINARY, packet(bytes(4096 - 40)))
        await served.arrived.wait()
        assert served.packets == [bytes(4096 - 40)]


async def test_a_close_frame_is_answered_and_ends_the_stream() -> None:
    async with serving() as served, served.upgraded() as peer:
        await peer.frame(Opcode.CLOSE, (1000).to_bytes(2, "big"))
        assert await peer.close_code() == 1000
        await served.ended.wait()


async def test_a_peer_that_pings_and_does_not_read_is_not_read_either(tmp_path: Path) -> None:
    async with joined("ws", tmp_path) as (client, server):
        assert isinstance(client, LayeredCarrier)
        client.transport.pause_reading()
        ping = Frame(Opcode.PING, bytes(125)).serialize(mask=True) * 500
        with anyio.move_on_after(1.0) as patience:
            while True:
                client.transport.write(ping)
                await client.drained()
        assert patience.cancelled_caught
        assert isinstance(server, LayeredCarrier)
        # The answers that wait are what one read of pings can cause, and not all there were.
        assert server.transport.get_write_buffer_size() < 1024 * 1024
        client.transport.resume_reading()
        with anyio.fail_after(SECONDS):
            await client.send(packet(b"after"))
            assert bodies(await server.receive()) == [b"after"]


async def test_packets_that_are_written_at_once_go_as_a_message_each() -> None:
    data = b"".join(packet(bytes(size)) for size in (0, 1, 70_000))
    assert list(split_packets(data)) == [packet(bytes(size)) for size in (0, 1, 70_000)]
    assert list(split_packets(b"")) == []
    assert list(split_packets(packet(b"abc")[:-1])) == [packet(b"abc")[:-1]]
    assert list(split_packets(packet(b"") + b"rest")) == [packet(b""), b"rest"]


async def test_a_packet_of_16_mib_passes_as_one_message(tmp_path: Path) -> None:
    large = packet(bytes(16 * 1024 * 1024))
    async with joined("ws", tmp_path) as (client, server), anyio.create_task_group() as tasks:

        async def send() -> None:
            await client.send(large)
            await client.aclose()

        tasks.start_soon(send)
        assert await read_all(server) == large


# --- the upgrade --------------------------------------------------------------------------------


async def test_another_path_is_not_found() -> None:
    async with serving() as served:
        assert (await served.refusal("/other")).startswith("HTTP/1.1 404 ")
        other = Endpoint("ws", served.endpoint.host, served.endpoint.port, "/other")
        with pytest.raises(PeerUnreachable, match="NNRP is served at /nnrp"):
            await connect_carrier(other)


async def test_a_page_in_a_browser_is_refused() -> None:
    async with serving() as served:
        answer = await served.refusal("/nnrp", "Origin: https://example.org")
        assert answer.startswith("HTTP/1.1 403 ")
        assert served.known == []


async def test_a_plain_request_is_told_what_is_here() -> None:
    async with serving() as served:
        stream = await anyio.connect_tcp(served.endpoint.host, served.endpoint.port)
        async with stream:
            await stream.send(b"GET /nnrp HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 426 ")


async def test_headers_without_end_are_refused() -> None:
    async with serving() as served:
        many = [f"X-{number}: {'x' * 100}" for number in range(1000)]
        answer = await served.refusal("/nnrp", *many)
        # websockets 15 and 16 end the connection without a word.
        assert answer.startswith("HTTP/1.1 431 ") or answer == ""
        assert served.known == []


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret"])
async def test_the_token_may_come_with_the_request(header: str) -> None:
    async with (
        serving(ServerSecurity(token="secret")) as served,
        served.upgraded(f"Authorization: {header}") as peer,
    ):
        await peer.frame(Opcode.BINARY, packet(b"x"))
        await served.arrived.wait()
        assert served.known == [True]


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer ", "Basic secret", "secret"])
async def test_a_wrong_token_in_the_request_is_refused(header: str) -> None:
    async with serving(ServerSecurity(token="secret")) as served:
        answer = await served.refusal("/nnrp", f"Authorization: {header}")
        assert answer.startswith("HTTP/1.1 401 ")
        assert served.known == []


async def test_without_a_token_in_the_request_the_hello_has_to_bring_it() -> None:
    async with serving(ServerSecurity(token="secret")) as served, served.upgraded() as peer:
        await peer.frame(Opcode.BINARY, packet(b"x"))
        await served.arrived.wait()
        assert served.known == [False]


async def test_a_stranger_sends_nothing_large_before_its_hello() -> None:
    large = packet(bytes(2 * 1024 * 1024))
    security = ServerSecurity(token="secret")
    async with serving(security) as served:
        async with served.upgraded() as peer:
            await peer.frame(Opcode.BINARY, packet(b"a probe, say"))
            await peer.frame(Opcode.BINARY, large)
            assert await peer.close_code() == 1009
        served.packets.clear()
        async with served.upgraded() as peer:
            await peer.frame(Opcode.BINARY, ClientConnection().hello(b"secret"))
            await served.until(1)  # As every client waits for the answer to its hello.
            await peer.frame(Opcode.BINARY, large)
            await served.until(2)


async def test_compression_is_not_agreed_to() -> None:
    offer = "Sec-WebSocket-Extensions: permessage-deflate"
    async with serving() as served, served.upgraded(offer) as peer:
        assert "extensions" not in peer.answer.lower()
