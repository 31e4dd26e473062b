"""A client of vLLM's HTTP server that leaves when it likes."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import ByteStream


@asynccontextmanager
async def request_open(
    address: str,
    path: str,
    body: dict[str, Any],
    request_id: str,
    headers: Mapping[str, str] | None = None,
) -> AsyncGenerator[ByteStream, None]:
    """A POST under way while the context is open; leaving it closes the connection."""
    host, _, port = address.rpartition(":")
    content = json.dumps(body).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address}\r\n{more}X-Request-Id: {request_id}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    async with await anyio.connect_tcp(host, int(port)) as stream:
        await stream.send(head.encode() + content)
        yield stream
