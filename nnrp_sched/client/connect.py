"""Opening client connections: by address, or over a carrier that is there already."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from nnrp_sched.client.connection import Connection
from nnrp_sched.errors import PeerUnreachable
from nnrp_sched.transport import (
    Carrier,
    ClientSecurity,
    Endpoint,
    background_tasks,
    connect_carrier,
    parse_endpoint,
)
from nnrp_sched.wire import Limits


@asynccontextmanager
async def connect(
    endpoint: str | Endpoint,
    *,
    seconds: float = 10.0,
    limits: Limits | None = None,
    security: ClientSecurity | None = None,
) -> AsyncGenerator[Connection, None]:
    """Connect to an NNRP server for the time of the block.

    `endpoint` is an address such as `nnrp://127.0.0.1:7437`, `nnrps://model.example.org`,
    `wss://model.example.org:443/nnrp` or `unix:///run/nnrp.sock`; `seconds` bounds the connect and
    the hello, each. The server's certificate is always verified; `security` tells by whom it may be
    signed, and how this client proves itself. Raises `EndpointError`, `SecurityError` and
    `PeerUnreachable`.
    """
    security = security or ClientSecurity()
    limits = limits or Limits()
    token = security.token_bytes
    target = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
    carrier: Carrier | None = None
    with anyio.move_on_after(seconds):
        carrier = await connect_carrier(target, security, max_packet_bytes=limits.max_packet_bytes)
    if carrier is None:
        raise PeerUnreachable(f"no connection to {target} in {seconds:g} s")
    async with over_carrier(carrier, seconds=seconds, limits=limits, token=token) as connection:
        yield connection


@asynccontextmanager
async def over_carrier(
    carrier: Carrier,
    *,
    seconds: float = 10.0,
    limits: Limits | None = None,
    token: bytes | None = None,
) -> AsyncGenerator[Connection, None]:
    """Like `connect`, over a carrier that is already open; closes it at the end."""
    connection = Connection(carrier, limits=limits or Limits())
    async with background_tasks() as tasks:
        tasks.start_soon(connection.write)
        tasks.start_soon(connection.read)
        try:
            await connection.say_hello(seconds, token)
            yield connection
        finally:
            with anyio.CancelScope(shield=True):
                await connection.aclose()
