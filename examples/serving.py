"""The server of an example: the one that it is told, or one of its own."""

import argparse
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from nnrp_sched.cli.child import started_server

OWN_SERVER = ("--patch-vllm", "--listen", "nnrp://127.0.0.1:0", "--http", "off")


def run(story: Callable[[str], Awaitable[None]], title: str | None) -> None:
    """Run an example's story on the endpoint of `--endpoint`, or on a server of its own."""
    parser = argparse.ArgumentParser(description=(title or "").partition("\n")[0])
    parser.add_argument(
        "--endpoint", help="an NNRP server, such as nnrp://127.0.0.1:7437 (default: start one)"
    )
    anyio.run(_tell, story, parser.parse_args().endpoint)


async def _tell(story: Callable[[str], Awaitable[None]], endpoint: str | None) -> None:
    async with served(endpoint) as address:
        await story(address)


@asynccontextmanager
async def served(endpoint: str | None) -> AsyncGenerator[str, None]:
    """The address of a server that is there for the time of the block."""
    if endpoint is not None:
        yield endpoint
        return
    print("Starting vLLM with the embedded model: about half a minute.", flush=True)
    async with started_server("run", *OWN_SERVER) as server:
        yield server.ready["endpoints"][0]
