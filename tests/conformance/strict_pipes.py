"""Bare carriers for the strict checks: each gives whole packets and imports nothing of the product.

A byte stream is cut by the headers; a WebSocket must bring exactly one packet in a binary message;
on QUIC everything is on the one bidirectional stream that the client opens.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit

from aioquic.asyncio import client
from aioquic.quic.configuration import QuicConfiguration
from websockets.asyncio.client import ClientConnection, connect

from tests.conformance.strict_codec import Packet, read_header, split
from tests.support.certificates import certificates


class Pipe(Protocol):
    """Packets to the server and from it."""

    async def send(self, data: bytes) -> None:
        """Send one packet."""
        ...

    async def packet(self) -> Packet:
        """The server's next packet."""
        ...


class StreamPipe:
    """Packets back to back on a byte stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def packet(self) -> Packet:
        header = await self._reader.readexactly(40)
        metadata, body = read_header(header)
        return split(header + await self._reader.readexactly(metadata + body))


class WebSocketPipe:
    """One packet in a message."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, data: bytes) -> None:
        await self._connection.send(data)

    async def packet(self) -> Packet:
        message = await self._connection.recv()
        assert isinstance(message, bytes), "a text message"
        return split(message)


@asynccontextmanager
async def pipe_to(endpoint: str) -> AsyncGenerator[Pipe]:
    """A pipe to an address of any scheme; the tests' own authority is trusted."""
    url = urlsplit(endpoint)
    tls = ssl.create_default_context(cafile=certificates().authority)
    if url.scheme in ("ws", "wss"):
        async with connect(endpoint, ssl=tls if url.scheme == "wss" else None) as connection:
            yield WebSocketPipe(connection)
        return
    if url.scheme == "quic":
        configuration = QuicConfiguration()  # No ALPN, as the SDK (wire digest 1.1).
        configuration.load_verify_locations(cafile=str(certificates().authority))
        assert url.hostname is not None and url.port is not None
        quic: Any = client  # Its types are not complete.
        async with quic.connect(url.hostname, url.port, configuration=configuration) as protocol:
            reader, writer = await protocol.create_stream()
            try:
                yield StreamPipe(reader, writer)
            finally:
                writer.close()
        return
    if url.scheme == "unix":
        reader, writer = await asyncio.open_unix_connection(url.path)
    else:
        reader, writer = await asyncio.open_connection(
            url.hostname, url.port, ssl=tls if url.scheme == "nnrps" else None
        )
    try:
        yield StreamPipe(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()
