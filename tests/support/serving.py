"""A server on the scripted engine and clients beside it, in memory or over any carrier."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Protocol
from weakref import WeakSet

import anyio

from nnrp_sched.client import Connection, Session
from nnrp_sched.client.connect import over_carrier
from nnrp_sched.engine.port import Engine
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.engine.tool_port import ToolHost
from nnrp_sched.observe.observers import Observer
from nnrp_sched.server import Server, ServerLimits
from nnrp_sched.transport import Carrier, background_tasks, connect_carrier, memory_pair
from tests.support.carriers import Place, client_security, server_security

MODEL = "example-model"
SECONDS = 20
"""The deadline of a wait in these tests; none of them comes near it."""


def body(text: str = "hello", **members: Any) -> dict[str, Any]:
    """A chat body for the scripted engine."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **members}


def script(**members: Any) -> dict[str, Any]:
    """A chat body that plays a script."""
    return body(scripted=members)


@asynccontextmanager
async def scripted_server(
    engine: Engine | None = None,
    limits: ServerLimits | None = None,
    observers: Iterable[Observer] = (),
    place: Place | None = None,
    tool_host: ToolHost | None = None,
) -> AsyncGenerator["InMemory", None]:
    """A server whose connections are memory pairs, or of the kind that `place` is of."""
    async with background_tasks() as tasks:
        elsewhere = place is not None and place.kind != "memory"
        security = server_security() if elsewhere else None
        server = Server(engine or ScriptedEngine(), limits, observers, security, tool_host)
        carriers = WeakSet[Carrier]()
        if place is not None and elsewhere:
            await server.listen(place.endpoint, tasks)

        def dial(*, same_host: bool = True) -> Carrier:
            ours, theirs = memory_pair(same_host=same_host)
            carriers.add(ours)
            tasks.start_soon(server.serve_carrier, theirs)
            return ours

        async def carrier() -> Carrier:
            if not server.endpoints:
                return dial()
            with anyio.fail_after(SECONDS):
                dialled = await connect_carrier(server.endpoints[0], client_security())
            carriers.add(dialled)
            return dialled

        try:
            yield InMemory(server, dial, carrier)
        finally:
            with anyio.CancelScope(shield=True):
                await server.drain(0)
                for each in list(carriers):
                    await each.aclose()


class InMemory:
    """A running server and how to reach it."""

    def __init__(
        self, server: Server, dial: "Dial", carrier: Callable[[], Awaitable[Carrier]]
    ) -> None:
        """`carrier` makes one of the place's kind."""
        self.server = server
        self.dial = dial
        self.carrier = carrier

    @asynccontextmanager
    async def connect(self, *, same_host: bool = True) -> AsyncGenerator[Connection, None]:
        """A client connection to the server."""
        carrier = self.dial(same_host=same_host) if not same_host else await self.carrier()
        async with over_carrier(carrier) as connection:
            yield connection


class Dial(Protocol):
    """Makes a carrier to the server; one that seems to come from elsewhere on request."""

    def __call__(self, *, same_host: bool = True) -> Carrier: ...


@asynccontextmanager
async def scripted_session(
    engine: Engine | None = None,
    limits: ServerLimits | None = None,
    *,
    max_in_flight: int = 256,
    place: Place | None = None,
    tool_host: ToolHost | None = None,
) -> AsyncGenerator[tuple[InMemory, Session], None]:
    """A server, and one session of one client on it."""
    async with (
        scripted_server(engine, limits, place=place, tool_host=tool_host) as served,
        served.connect() as connection,
        connection.session(max_in_flight=max_in_flight) as session,
    ):
        yield served, session
