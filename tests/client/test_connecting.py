"""Connecting over each carrier to peers that are silent, foreign, or leave in the middle."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from nnrp_sched.client import connect
from nnrp_sched.errors import PeerUnreachable
from nnrp_sched.transport import background_tasks
from tests.support.carriers import client_security

pytestmark = pytest.mark.anyio
SECONDS = 20
STREAMS = ("nnrp", "nnrps", "ws", "wss")
HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\nConnection: close\r\n\r\nsorry"


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncGenerator[int]:
    """The port of a TCP server that says `answer` and closes; None is silent for ever."""

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            if answer is None:
                await anyio.sleep_forever()
                return
            await stream.receive()
            await stream.send(answer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, background_tasks() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)


@asynccontextmanager
async def silent(scheme: str) -> AsyncGenerator[str]:
    """The endpoint of a peer that is there and says nothing."""
    if scheme == "quic":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as raw:
            raw.bind(("127.0.0.1", 0))
            yield f"quic://127.0.0.1:{raw.getsockname()[1]}"
        return
    async with answering(None) as port:
        yield f"{scheme}://127.0.0.1:{port}"


async def failure(endpoint: str, seconds: float = 10.0) -> str:
    """Why there is no connection."""
    with anyio.fail_after(SECONDS), pytest.raises(PeerUnreachable) as raised:
        async with connect(endpoint, seconds=seconds, security=client_security()):
            pass
    return str(raised.value)


@pytest.mark.parametrize("scheme", [*STREAMS, "quic"])
async def test_a_silent_peer_is_given_up_in_time(scheme: str) -> None:
    async with silent(scheme) as endpoint:
        assert "0.3 s" in await failure(endpoint, seconds=0.3)


@pytest.mark.parametrize(
    ("scheme", "words"),
    [("nnrp", "is it an NNRP endpoint"), ("nnrps", "TLS"), ("ws", "HTTP"), ("wss", "TLS")],
)
async def test_a_server_of_something_else_is_told_apart(scheme: str, words: str) -> None:
    async with answering(HTTP) as port:
        assert words in await failure(f"{scheme}://127.0.0.1:{port}")


@pytest.mark.parametrize("scheme", STREAMS)
async def test_a_peer_that_leaves_at_once_is_named(scheme: str) -> None:
    async with answering(b"") as port:
        why = await failure(f"{scheme}://127.0.0.1:{port}")
    assert "left" in why or "ended the connection" in why or "connection closed" in why


@pytest.mark.parametrize("scheme", [*STREAMS, "quic"])
async def test_nobody_at_the_port_is_told_at_once(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    why = await failure(f"{scheme}://127.0.0.1:{port}")
    assert str(port) in why


@pytest.mark.parametrize("scheme", [*STREAMS, "quic"])
async def test_giving_up_while_it_connects_leaves_nothing_behind(scheme: str) -> None:
    async with silent(scheme) as endpoint:
        with anyio.move_on_after(0.1) as patience:
            async with connect(endpoint, security=client_security()):
                pass
    assert patience.cancelled_caught
