"""Streams over our wire, over raw length-prefixed JSON and over server-sent events, in one run.

    python -m bench.wire_streams [--rounds 5] [--json]

One server process makes the same chat chunks and serves them five ways, a client process reads
them. Rounds are interleaved, so that a noisy machine hits all alike; the ratios are what counts.

    wire      NNRP packets alone: state machine, outbox and TCP carrier on the server, carrier,
              state machine and inbox on the client; the chunk is the event
    nnrp      the whole product: `server.serve` with operations and the profile's mapper, and
              `client.connect` with typed events
    raw       length-prefixed JSON over asyncio streams
    sse       server-sent events by starlette on uvicorn, read by aiohttp, as a plain install has
              them: h11 and the standard library's JSON
    sse fast  the same with httptools and msgspec

Measured: the time from a chunk's making to its arrival as a decoded object, one paced stream
(p50 and p99 in ms); chunks per second, unpaced, with 1 and with 64 streams. NNRP carries the 64
streams on one connection, the others take one connection each.
"""

import argparse
import asyncio
import json
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import msgspec

from bench.streams.chunks import Addresses, Stream
from bench.streams.clients import nnrp_stream, raw_stream, sse_stream, wire_stream
from bench.streams.servers import run_servers
from nnrp_sched.client import Session, connect


async def latencies(stream: Stream, count: int, gap: float) -> list[float]:
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


async def measure(addresses: Addresses, rounds: int) -> dict[str, dict[str, float]]:
    """All measures of all stacks, interleaved; medians over the rounds."""
    found: dict[tuple[str, str], list[Any]] = {}
    async with AsyncExitStack() as stack:

        async def session(endpoint: str) -> Session:
            connection = await stack.enter_async_context(connect(endpoint))
            return await stack.enter_async_context(connection.session())

        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        stacks = {
            "wire": wire_stream(await session(addresses.wire)),
            "nnrp": nnrp_stream(await session(addresses.nnrp)),
            "raw": raw_stream(addresses.raw),
            "sse": sse_stream(http, addresses.sse, json.loads),
            "sse fast": sse_stream(http, addresses.sse_fast, msgspec.json.decode),
        }
        for stream in stacks.values():  # Warm-up, not measured.
            await rate(stream, 4, 200)
        for _ in range(rounds):
            for measure_name, take in MEASURES.items():
                for stack_name, stream in stacks.items():
                    found.setdefault((stack_name, measure_name), []).append(await take(stream))
    return {name: summary(name, found) for name in stacks}


def summary(name: str, found: dict[tuple[str, str], list[Any]]) -> dict[str, float]:
    """Medians of one stack."""
    per_round = [statistics.quantiles(each, n=100) for each in found[name, "latency"]]
    return {
        "p50_ms": statistics.median(quantiles[49] for quantiles in per_round),
        "p99_ms": statistics.median(quantiles[98] for quantiles in per_round),
        "rate_1": statistics.median(found[name, "rate 1"]),
        "rate_64": statistics.median(found[name, "rate 64"]),
    }


def ratio(row: str, first: str, second: str) -> Callable[[dict[str, dict[str, float]]], float]:
    """One stack's figure over another's."""
    return lambda stacks: stacks[first][row] / stacks[second][row]


RATIOS = {
    "latency p50, wire / raw (target: at most 1.2)": ratio("p50_ms", "wire", "raw"),
    "latency p50, nnrp / raw": ratio("p50_ms", "nnrp", "raw"),
    "latency p50, nnrp / sse": ratio("p50_ms", "nnrp", "sse"),
    "latency p50, nnrp / sse fast": ratio("p50_ms", "nnrp", "sse fast"),
    "events/s, 64 streams, wire / sse (target: at least 2.5)": ratio("rate_64", "wire", "sse"),
    "events/s, 64 streams, wire / sse fast": ratio("rate_64", "wire", "sse fast"),
    "events/s, 64 streams, nnrp / sse": ratio("rate_64", "nnrp", "sse"),
    "events/s, 64 streams, nnrp / sse fast": ratio("rate_64", "nnrp", "sse fast"),
    "events/s, 64 streams, wire / raw": ratio("rate_64", "wire", "raw"),
    "events/s, 1 stream, wire / raw": ratio("rate_1", "wire", "raw"),
    "events/s, 1 stream, nnrp / sse": ratio("rate_1", "nnrp", "sse"),
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
    ratios = {name: compare(stacks) for name, compare in RATIOS.items()}
    machine = f"{platform.machine()}, CPython {platform.python_version()}, {platform.system()}"
    if arguments.json:
        json.dump({"machine": machine, "stacks": stacks, "ratios": ratios}, sys.stdout)
        print()
        return
    print(f"{machine}; {arguments.rounds} rounds, medians")
    print(f"{'':9}{'p50 ms':>10}{'p99 ms':>10}{'ev/s, 1':>12}{'ev/s, 64':>12}")
    for name, row in stacks.items():
        print(
            f"{name:9}{row['p50_ms']:10.3f}{row['p99_ms']:10.3f}"
            f"{row['rate_1']:12.0f}{row['rate_64']:12.0f}"
        )
    for name, value in ratios.items():
        print(f"{name}: {value:.2f}")


if __name__ == "__main__":
    main()
