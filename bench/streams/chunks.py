"""The chunks that every stack carries, and where the stacks are found."""

import asyncio
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import msgspec

from nnrp_sched.engine.port import ChatBody
from nnrp_sched.transport import parse_endpoint

LENGTH = struct.Struct("<I")
LOOPBACK = parse_endpoint("nnrp://127.0.0.1:0")
PADDING = "x" * 40
Stream = Callable[[int, float], AsyncIterator[float]]
"""(chunks, gap in seconds) → the monotonic time of making of each chunk as it arrives."""


class Addresses(msgspec.Struct, frozen=True):
    """Where the server process serves: endpoints of ours, ports of the others."""

    wire: str
    nnrp: str
    raw: int
    sse: int
    sse_fast: int


def chunk(number: int) -> ChatBody:
    """A chat chunk of about 200 bytes of JSON that carries its time of making."""
    return {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "bench",
        "choices": [
            {
                "index": 0,
                "delta": {"content": f"{time.monotonic():.9f} {number} {PADDING}"},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    }


async def chunks(count: int, gap: float) -> AsyncGenerator[ChatBody, None]:
    """Make `count` chunks, `gap` seconds apart.

    Without a gap each chunk takes one turn of the event loop, in which every other stream makes one
    too: as an engine's step gives each running request one token.
    """
    for number in range(count):
        await asyncio.sleep(gap)
        yield chunk(number)


def made_at(content: str) -> float:
    """The time of making inside a chunk's content."""
    return float(content.split(" ", 1)[0])
