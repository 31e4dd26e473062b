"""Bare carriers for the strict checks: each gives whole packets and imports nothing of the product.

A byte stream is cut by the headers; a WebSocket must bring exactly one packet in a binary message.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect

from tests.conformance.strict_codec import Packet, read_header, split


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
    """A pipe to `tcp`, `nnrp`, `unix` or `ws`."""
    url = urlsplit(endpoint)
    if url.scheme == "ws":
        async with connect(endpoint) as connection:
            yield WebSocketPipe(connection)
        return
    if url.scheme == "unix":
        reader, writer = await asyncio.open_unix_connection(url.path)
    else:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        yield StreamPipe(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()
