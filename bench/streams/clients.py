"""The readers of the five stacks: each gives the time of making of every chunk as it arrives."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec

from bench.streams.chunks import LENGTH, Stream, made_at
from nnrp_sched.client import Session
from nnrp_sched.profile import OutputTextDelta, build_envelope


def nnrp_stream(session: Session) -> Stream:
    """Chats of one session."""

    async def stream(count: int, gap: float) -> AsyncIterator[float]:
        body = {"model": "bench", "messages": [{"role": "user"}], "count": count, "gap": gap}
        async for event in session.chat(body, stream=True):
            if isinstance(event, OutputTextDelta):
                yield made_at(event.delta)

    return stream


def wire_stream(session: Session) -> Stream:
    """Operations of one session, their events taken as bare JSON."""

    async def stream(count: int, gap: float) -> AsyncIterator[float]:
        body = {"model": "bench", "messages": [{"role": "user"}], "count": count, "gap": gap}
        await session.take_place()
        submission = session.submit(build_envelope(body))
        while isinstance(item := await submission.inbox.get(), bytes):
            each = msgspec.json.decode(item)
            yield made_at(each["choices"][0]["delta"]["content"])

    return stream


def raw_stream(port: int) -> Stream:
    """A connection each."""

    async def stream(count: int, gap: float) -> AsyncIterator[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(msgspec.json.encode({"count": count, "gap": gap}) + b"\n")
        for _ in range(count):
            (length,) = LENGTH.unpack(await reader.readexactly(4))
            each = msgspec.json.decode(await reader.readexactly(length))
            yield made_at(each["choices"][0]["delta"]["content"])
        writer.close()
        await writer.wait_closed()

    return stream


def sse_stream(http: aiohttp.ClientSession, port: int, decode: Callable[[bytes], Any]) -> Stream:
    """A response each."""

    async def stream(count: int, gap: float) -> AsyncIterator[float]:
        async with http.get(f"http://127.0.0.1:{port}/?{count}&{gap}") as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    each = decode(line[6:])
                    yield made_at(each["choices"][0]["delta"]["content"])

    return stream
