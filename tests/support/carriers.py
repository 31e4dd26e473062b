"""Every kind of carrier, for tests that must hold on each of them."""

import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
from msgspec import Struct

from nnrp_sched.transport import (
    Carrier,
    ClientSecurity,
    Endpoint,
    ListenLimits,
    ServerSecurity,
    connect_carrier,
    listen,
    memory_pair,
    parse_endpoint,
)
from nnrp_sched.wire.codec import HEADER, HEADER_BYTES, PREFIX
from tests.support.certificates import certificates

SECONDS: Final = 20

ENDPOINTS: Final = {
    "tcp": "tcp://127.0.0.1:0",
    "unix": "unix://{directory}/a.sock",
    "tls": "nnrps://127.0.0.1:0",
    "ws": "ws://127.0.0.1:0",
    "wss": "wss://127.0.0.1:0",
    "quic": "quic://127.0.0.1:0",
}
"""An endpoint of each kind."""

KINDS: Final = ("memory", *ENDPOINTS)

NAMES: Final = {"ws": "websocket", "wss": "websocket"}
"""The carrier's name where the kind here has another."""

SOCKETS: Final = ("tcp", "unix", "tls", "ws", "wss")
"""The kinds that stand on a stream socket."""

_LENGTHS: Final = struct.Struct("<II")


class Place(Struct, frozen=True):
    """A kind of carrier, and where its unix socket may be."""

    kind: str
    directory: Path

    @property
    def endpoint(self) -> Endpoint:
        """Where a server of this kind listens."""
        return parse_endpoint(ENDPOINTS[self.kind].format(directory=self.directory))


def server_security() -> ServerSecurity:
    """A server that any client reaches, with a certificate for localhost."""
    files = certificates()
    return ServerSecurity(certificate=files.server, key=files.server_key)


def client_security() -> ClientSecurity:
    """A client that trusts that server."""
    return ClientSecurity(ca=certificates().authority)


def packet(body: bytes) -> bytes:
    """A packet around some bytes, whose type does not matter to a carrier."""
    return HEADER.pack(PREFIX, 0x21, HEADER_BYTES, 0, 0, len(body), 0, 0, 0, 0, 0) + body


def bodies(packets: bytes) -> list[bytes]:
    """What was put into packets."""
    found: list[bytes] = []
    while packets:
        metadata, body = _LENGTHS.unpack_from(packets, 12)
        end = HEADER_BYTES + metadata + body
        found.append(packets[HEADER_BYTES + metadata : end])
        packets = packets[end:]
    return found


@asynccontextmanager
async def joined(
    kind: str, directory: Path, limits: ListenLimits | None = None
) -> AsyncGenerator[tuple[Carrier, Carrier], None]:
    """A client's carrier and the server's carrier of the same connection."""
    with anyio.fail_after(SECONDS):
        if kind == "memory":
            ours, theirs = memory_pair()
            yield ours, theirs
            await ours.aclose()
            await theirs.aclose()
            return
        endpoint = Place(kind, directory).endpoint
        listener = await listen(endpoint, server_security(), limits or ListenLimits())
        taken: list[Carrier] = []
        arrived, finished = anyio.Event(), anyio.Event()

        async def handle(carrier: Carrier) -> None:
            taken.append(carrier)
            arrived.set()
            await finished.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, handle)
            client = await connect_carrier(listener.endpoint, client_security())
            await arrived.wait()
            yield client, taken[0]
            finished.set()
            await client.aclose()
            await listener.aclose()


async def read_all(carrier: Carrier) -> bytes:
    """Every byte until the end of the stream."""
    pieces: list[bytes] = []
    while piece := await carrier.receive():
        pieces.append(piece)
    return b"".join(pieces)
