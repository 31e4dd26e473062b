"""Scripted servers on the carriers that the conformance tests run over."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.server import serve
from nnrp_sched.transport import Endpoint, parse_endpoint
from tests.support.carriers import ENDPOINTS, server_security

KINDS: Final = tuple(ENDPOINTS)


@asynccontextmanager
async def scripted_on(kind: str, folder: Path) -> AsyncGenerator[Endpoint]:
    """The address of a scripted server on a kind of carrier; `folder` takes its socket."""
    endpoint = parse_endpoint(ENDPOINTS[kind].format(directory=folder))
    async with serve(ScriptedEngine(), [endpoint], security=server_security()) as server:
        yield server.endpoints[0]
