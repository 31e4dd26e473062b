"""Streams over our wire, over raw length-prefixed JSON and over server-sent events, in one run.

    python bench/wire_streams.py [--rounds 5] [--json]

One server process serves the same chat chunks three ways: through this project's server (NNRP over
TCP), as length-prefixed JSON over plain asyncio TCP, and as server-sent events by uvicorn. A client
process reads them with this project's client, plain asyncio and aiohttp. Rounds are interleaved, so
that a noisy machine hits all three alike; the ratios are what counts.

Measured: the time from a chunk's making to its arrival as a decoded object, one paced stream
(p50 and p99 in ms); chunks per second, unpaced, with 1 and with 64 streams. NNRP carries the 64
streams on one connection, the other two take one connection each.
"""

import argparse
import asyncio
import json
import multiprocessing
import platform
import socket
import statistics
import struct
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection as Pipe
from typing import Any

import aiohttp
import anyio
import msgspec
import uvicorn
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from nnrp_sched.client import Session, connect
from nnrp_sched.engine.opaque import OpaqueQueue
from nnrp_sched.engine.port import AbortReceipt, ChatBody, ChatCall, EngineDescription
from nnrp_sched.profile import OutputTextDelta
from nnrp_sched.server import serve
from nnrp_sched.transport import parse_endpoint

LENGTH = struct.Struct("<I")
PADDING = "x" * 40
Latencies = list[float]
Stream = Callable[[int, float], AsyncIterator[float]]
"""(chunks, gap in seconds) → the monotonic time of making of each chunk as it arrives."""


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


# --- the three servers, in one process ------------------------------------------------------------


class ChunkEngine(OpaqueQueue):
    """An engine that serves `chunks`; the body says how many and how far apart."""

    description = EngineDescription(family="bench", models=("bench",), tool_calls=False)

    async def complete(self, call: ChatCall) -> ChatBody:
        """Not measured here."""
        raise AssertionError(f"{call.request_id} does not stream")

    def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """Serve the chunks the body asks for."""
        return chunks(call.body["count"], call.body["gap"])

    async def abort(self, request_id: str) -> AbortReceipt:
        """Nothing is ever aborted here."""
        raise AssertionError(f"{request_id} was aborted")


async def serve_raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Length-prefixed JSON: one request, its chunks, the end of the stream."""
    request = msgspec.json.decode(await reader.readline())
    async for each in chunks(request["count"], request["gap"]):
        data = msgspec.json.encode(each)
        writer.write(LENGTH.pack(len(data)) + data)
        await writer.drain()
    writer.close()


async def serve_events(scope: Scope, receive: Receive, send: Send) -> None:
    """Server-sent events by starlette's StreamingResponse, as vLLM serves them."""
    count, gap = scope["query_string"].decode().split("&")

    async def events() -> AsyncGenerator[bytes, None]:
        async for each in chunks(int(count), float(gap)):
            yield b"data: " + msgspec.json.encode(each) + b"\n\n"
        yield b"data: [DONE]\n\n"

    await StreamingResponse(events(), media_type="text/event-stream")(scope, receive, send)


def run_servers(pipe: Pipe) -> None:
    """The server process: say the three addresses, serve until told to stop."""

    async def main() -> None:
        raw = await asyncio.start_server(serve_raw, "127.0.0.1", 0)
        http_socket = socket.create_server(("127.0.0.1", 0))
        http = uvicorn.Server(uvicorn.Config(serve_events, log_level="error", lifespan="off"))
        http_task = asyncio.create_task(http.serve(sockets=[http_socket]))
        async with serve(ChunkEngine(), [parse_endpoint("nnrp://127.0.0.1:0")]) as server:
            raw_port = raw.sockets[0].getsockname()[1]
            http_port = http_socket.getsockname()[1]
            pipe.send((str(server.endpoints[0]), raw_port, http_port))
            await anyio.to_thread.run_sync(pipe.recv)
        raw.close()
        http.should_exit = True
        await http_task

    asyncio.run(main())


# --- the three clients ----------------------------------------------------------------------------


def nnrp_stream(session: Session) -> Stream:
    """Chats of one session."""

    async def stream(count: int, gap: float) -> AsyncIterator[float]:
        body = {"model": "bench", "messages": [{"role": "user"}], "count": count, "gap": gap}
        async for event in session.chat(body, stream=True):
            if isinstance(event, OutputTextDelta):
                yield made_at(event.delta)

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


def sse_stream(http: aiohttp.ClientSession, port: int) -> Stream:
    """A response each."""

    async def stream(count: int, gap: float) -> AsyncIterator[float]:
        async with http.get(f"http://127.0.0.1:{port}/?{count}&{gap}") as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    each = msgspec.json.decode(line[6:])
                    yield made_at(each["choices"][0]["delta"]["content"])

    return stream


# --- the measurement ------------------------------------------------------------------------------


async def latencies(stream: Stream, count: int, gap: float) -> Latencies:
    """Milliseconds from making to arrival."""
    return [(time.monotonic() - made) * 1000 async for made in stream(count, gap)]


async def rate(stream: Stream, streams: int, count: int) -> float:
    """Chunks per second over all streams."""
    arrived = 0

    async def read() -> None:
        nonlocal arrived
        async for _ in stream(count, 0):
            arrived += 1

    started = time.perf_counter()
    await asyncio.gather(*(read() for _ in range(streams)))
    elapsed = time.perf_counter() - started
    assert arrived == streams * count, f"{arrived} of {streams * count} chunks arrived"
    return arrived / elapsed


MEASURES: dict[str, Callable[[Stream], Awaitable[Any]]] = {
    "latency": lambda stream: latencies(stream, 200, 0.005),
    "rate 1": lambda stream: rate(stream, 1, 10_000),
    "rate 64": lambda stream: rate(stream, 64, 500),
}


async def measure(addresses: tuple[str, int, int], rounds: int) -> dict[str, dict[str, float]]:
    """All measures of all stacks, interleaved; medians over the rounds."""
    endpoint, raw_port, http_port = addresses
    found: dict[tuple[str, str], list[Any]] = {}
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(connect(endpoint))
        session = await stack.enter_async_context(connection.session())
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        stacks = {
            "nnrp": nnrp_stream(session),
            "raw": raw_stream(raw_port),
            "sse": sse_stream(http, http_port),
        }
        for stream in stacks.values():  # Warm-up, not measured.
            await rate(stream, 4, 200)
        for _ in range(rounds):
            for measure_name, take in MEASURES.items():
                for stack_name, stream in stacks.items():
                    found.setdefault((stack_name, measure_name), []).append(await take(stream))
    return {name: summary(name, found) for name in ("nnrp", "raw", "sse")}


def summary(name: str, found: dict[tuple[str, str], list[Any]]) -> dict[str, float]:
    """Medians of one stack."""
    per_round = [statistics.quantiles(each, n=100) for each in found[name, "latency"]]
    return {
        "p50_ms": statistics.median(quantiles[49] for quantiles in per_round),
        "p99_ms": statistics.median(quantiles[98] for quantiles in per_round),
        "events_per_s_1": statistics.median(found[name, "rate 1"]),
        "events_per_s_64": statistics.median(found[name, "rate 64"]),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=run_servers, args=(theirs,), daemon=True)
    server.start()
    stacks = asyncio.run(measure(ours.recv(), arguments.rounds))
    ours.send("stop")
    server.join(10)
    nnrp, raw, sse = stacks["nnrp"], stacks["raw"], stacks["sse"]
    ratios = {
        "latency p50, nnrp / raw (at most 1.2)": nnrp["p50_ms"] / raw["p50_ms"],
        "events/s with 64 streams, nnrp / sse (at least 2.5)": nnrp["events_per_s_64"]
        / sse["events_per_s_64"],
        "latency p50, nnrp / sse": nnrp["p50_ms"] / sse["p50_ms"],
        "events/s with 1 stream, nnrp / raw": nnrp["events_per_s_1"] / raw["events_per_s_1"],
        "events/s with 1 stream, nnrp / sse": nnrp["events_per_s_1"] / sse["events_per_s_1"],
        "events/s with 64 streams, nnrp / raw": nnrp["events_per_s_64"] / raw["events_per_s_64"],
    }
    machine = f"{platform.machine()}, CPython {platform.python_version()}, {platform.system()}"
    if arguments.json:
        json.dump({"machine": machine, "stacks": stacks, "ratios": ratios}, sys.stdout)
        print()
        return
    print(f"{machine}; {arguments.rounds} rounds, medians")
    print(f"{'':6}{'p50 ms':>10}{'p99 ms':>10}{'ev/s, 1':>12}{'ev/s, 64':>12}")
    for name, row in stacks.items():
        print(
            f"{name:6}{row['p50_ms']:10.3f}{row['p99_ms']:10.3f}"
            f"{row['events_per_s_1']:12.0f}{row['events_per_s_64']:12.0f}"
        )
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
