"""The whole product over each of its carriers, in one run.

    python -m bench.carriers [--rounds 5] [--json]

A server process listens at all of them, a client process reads paced and unpaced streams on one
connection of each; rounds are interleaved. Measured as in wire_streams: the time from a chunk's
making to its arrival (one paced stream, p50 and p99 in ms), chunks per second unpaced with 1 and
with 64 streams; and besides, the time from nothing to an open session (p50 in ms).
"""

import argparse
import asyncio
import json
import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import anyio
import trustme

from bench.streams.chunks import Stream
from bench.streams.clients import nnrp_stream
from bench.streams.servers import ChunkEngine
from bench.wire_streams import MEASURES, rate, summary
from nnrp_sched.client import connect
from nnrp_sched.server import serve
from nnrp_sched.transport import ClientSecurity, ServerSecurity, parse_endpoint

CARRIERS = {
    "unix": "unix://{folder}/bench.sock",
    "tcp": "nnrp://127.0.0.1:0",
    "tls": "nnrps://127.0.0.1:0",
    "websocket": "ws://127.0.0.1:0",
    "wss": "wss://127.0.0.1:0",
    "quic": "quic://127.0.0.1:0",
}
SETUPS = 10


def run_server(pipe: Pipe, folder: Path) -> None:
    """The server process: say the addresses, serve until told to stop."""

    async def main() -> None:
        endpoints = [parse_endpoint(text.format(folder=folder)) for text in CARRIERS.values()]
        security = ServerSecurity(certificate=folder / "server.pem", key=folder / "key.pem")
        async with serve(ChunkEngine(), endpoints, security=security) as server:
            pipe.send([str(endpoint) for endpoint in server.endpoints])
            await anyio.to_thread.run_sync(pipe.recv)

    asyncio.run(main())


async def setup(endpoint: str, security: ClientSecurity) -> float:
    """Milliseconds until a session is open, on a connection of its own."""
    started = time.perf_counter()
    async with connect(endpoint, security=security) as connection, connection.session():
        return (time.perf_counter() - started) * 1000


async def measure(
    endpoints: dict[str, str], security: ClientSecurity, rounds: int
) -> dict[str, dict[str, float]]:
    """All measures of all carriers, interleaved; medians over the rounds."""
    found: dict[tuple[str, str], list[Any]] = {}
    setups: dict[str, list[float]] = {name: [] for name in endpoints}
    async with AsyncExitStack() as stack:
        streams: dict[str, Stream] = {}
        for name, endpoint in endpoints.items():
            connection = await stack.enter_async_context(connect(endpoint, security=security))
            session = await stack.enter_async_context(connection.session())
            streams[name] = nnrp_stream(session)
            await rate(streams[name], 4, 200)  # Warm-up, not measured.
        for _ in range(rounds):
            for measure_name, take in MEASURES.items():
                for name, stream in streams.items():
                    found.setdefault((name, measure_name), []).append(await take(stream))
            for name, endpoint in endpoints.items():
                setups[name] += [await setup(endpoint, security) for _ in range(SETUPS)]
    return {
        name: {**summary(name, found), "setup_ms": statistics.median(setups[name])}
        for name in endpoints
    }


def write_certificates(folder: Path) -> ClientSecurity:
    """A server's certificate; what a client needs to trust it."""
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    server.private_key_pem.write_to_path(folder / "key.pem")
    server.cert_chain_pems[0].write_to_path(folder / "server.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return ClientSecurity(ca=folder / "ca.pem")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        security = write_certificates(folder)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        server = context.Process(target=run_server, args=(theirs, folder), daemon=True)
        server.start()
        endpoints = dict(zip(CARRIERS, ours.recv(), strict=True))
        rows = asyncio.run(measure(endpoints, security, arguments.rounds))
        ours.send("stop")
        server.join(10)
    machine = f"{platform.machine()}, CPython {platform.python_version()}, {platform.system()}"
    if arguments.json:
        json.dump({"machine": machine, "carriers": rows}, sys.stdout)
        print()
        return
    print(f"{machine}; {arguments.rounds} rounds, medians")
    print(f"{'':10}{'p50 ms':>9}{'p99 ms':>9}{'ev/s, 1':>11}{'ev/s, 64':>11}{'setup ms':>10}")
    for name, row in rows.items():
        print(
            f"{name:10}{row['p50_ms']:9.3f}{row['p99_ms']:9.3f}{row['rate_1']:11.0f}"
            f"{row['rate_64']:11.0f}{row['setup_ms']:10.2f}"
        )


if __name__ == "__main__":
    main()
