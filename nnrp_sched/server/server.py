"""The server: listeners, connections and the way down."""

import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from nnrp_sched.engine.port import Engine
from nnrp_sched.engine.tool_port import ToolHost
from nnrp_sched.observe.observers import Observer, Observers
from nnrp_sched.server.admission import Admission
from nnrp_sched.server.connection import Connection
from nnrp_sched.server.directory import Directory
from nnrp_sched.server.intake import Shared
from nnrp_sched.server.key_table import KeyTable
from nnrp_sched.server.limits import ServerLimits
from nnrp_sched.server.tool_calls import ToolCalls
from nnrp_sched.transport import (
    Carrier,
    Endpoint,
    Listener,
    ListenLimits,
    ServerSecurity,
    background_tasks,
    listen,
)

_LOGGER = logging.getLogger(__name__)


class Server:
    """Serves an engine to any number of NNRP connections."""

    def __init__(
        self,
        engine: Engine,
        limits: ServerLimits | None = None,
        observers: Iterable[Observer] = (),
        security: ServerSecurity | None = None,
        tool_host: ToolHost | None = None,
    ) -> None:
        """`observers` are told of each chat that has ended; `security` guards the endpoints.

        `tool_host` runs the tools that clients may call, if there are to be any. Raises
        `SecurityError` for a token that cannot be one.
        """
        self._security = security or ServerSecurity()
        self.engine = engine
        self.limits = limits or ServerLimits()
        self.admission = Admission(self.limits.max_operations, self.limits.max_control_operations)
        self.directory = Directory()
        self.keys = KeyTable(self.engine, self.admission, self.limits)
        self.tools = ToolCalls(tool_host, self.limits.max_tool_calls)
        self._shared = Shared(
            self.engine,
            self.limits,
            self.admission,
            self.directory,
            self.keys,
            self.tools,
            Observers(observers),
            token=self._security.token_bytes,
        )
        self._connections: set[Connection] = set()
        self._listeners: list[Listener] = []

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where the server listens, with the ports it really got."""
        return tuple(listener.endpoint for listener in self._listeners)

    @property
    def connections(self) -> frozenset[Connection]:
        """The connections open now."""
        return frozenset(self._connections)

    async def listen(self, endpoint: Endpoint, tasks: TaskGroup) -> None:
        """Open one endpoint and serve it in `tasks`. Raises as `transport.listen` does."""
        limits = ListenLimits(
            handshake_seconds=self.limits.hello_seconds,
            max_packet_bytes=self.limits.max_packet_bytes,
        )
        listener = await listen(endpoint, self._security, limits)
        self._listeners.append(listener)
        tasks.start_soon(listener.serve, self._take)

    async def _take(self, carrier: Carrier) -> None:
        try:
            await self.serve_carrier(carrier)
        except Exception:
            # A fault that one peer meets must not end the listener, and with it everybody else.
            _LOGGER.exception("a connection over %s ended by a fault", carrier.name)

    async def serve_carrier(self, carrier: Carrier) -> None:
        """Serve one peer on a carrier that is open. What is a fault of the server's is raised."""
        if len(self._connections) >= self.limits.max_connections or self.admission.draining:
            await carrier.aclose()
            return
        connection = Connection(carrier, self._shared)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    async def drain(self, seconds: float | None = None) -> None:
        """Stop admitting, let operations finish for up to `seconds`, then end the rest.

        `seconds` defaults to the limits' drain time. Every client gets a terminal for each of its
        operations and a CLOSE.
        """
        self.admission.draining = True
        for listener in self._listeners:
            await listener.aclose()
        wait = self.limits.drain_seconds if seconds is None else seconds
        async with anyio.create_task_group() as tasks:
            for connection in list(self._connections):
                tasks.start_soon(connection.drain, wait)
        await self.keys.aclose()


@asynccontextmanager
async def serve(
    engine: Engine,
    endpoints: Sequence[Endpoint],
    limits: ServerLimits | None = None,
    observers: Iterable[Observer] = (),
    security: ServerSecurity | None = None,
    tool_host: ToolHost | None = None,
) -> AsyncGenerator[Server, None]:
    """Serve `engine` on `endpoints` while the block runs; the rest is as for `Server`.

    Leaving the block ends what still runs at once; call `Server.drain` first to let it finish.
    Raises `StartError` when an endpoint cannot be opened, and `SecurityError` when it must not be.
    """
    server = Server(engine, limits, observers, security, tool_host)
    async with background_tasks() as tasks:
        try:
            for endpoint in endpoints:
                await server.listen(endpoint, tasks)
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                await server.drain(0)
