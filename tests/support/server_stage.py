"""Servers on the scripted engine that a test starts, stops, kills and starts again by name."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from nnrp_sched.client import Connection, connect
from nnrp_sched.client.connect import over_carrier
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import PeerUnreachable
from nnrp_sched.server import Server, ServerLimits
from nnrp_sched.transport import (
    Carrier,
    Endpoint,
    Listener,
    ListenLimits,
    ServerSecurity,
    listen,
    memory_pair,
    parse_endpoint,
)
from nnrp_sched_orchestrator.pool import Pool
from nnrp_sched_orchestrator.pool_records import PoolSettings

SECONDS = 20

Prepare = Callable[[], tuple[ScriptedEngine, ServerLimits]]


def quick(**members: Any) -> PoolSettings:
    """Settings of a pool that tries again soon."""
    usual: dict[str, Any] = {"backoff_seconds": 0.002, "backoff_limit_seconds": 0.01}
    return PoolSettings(**{**usual, **members})


class _Mutable:
    """A carrier that may be muted."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.muted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._carrier, name)

    def write(self, data: bytes) -> bool:
        return self.muted or self._carrier.write(data)


class Host:
    """One place where a server may run, reached through memory or at a port of its own."""

    def __init__(self, name: str, tasks: TaskGroup, prepare: Prepare, *, tcp: bool) -> None:
        self.name = name
        """How a pool names it."""
        self.engine = ScriptedEngine()
        self.server: Server | None = None
        self.connections = 0
        """Connections that were made to it."""
        self._carriers: list[_Mutable] = []
        self._serving: TaskGroup | None = None
        self._listener: Listener | None = None
        self._tasks = tasks
        self._prepare = prepare
        self._tcp = tcp
        self._endpoint = parse_endpoint("tcp://127.0.0.1:0")
        self._running = anyio.CancelScope()
        self._gone = anyio.Event()

    async def start(self) -> None:
        """Let a server run there, on an engine of its own."""
        started = anyio.Event()
        self._running, self._gone = anyio.CancelScope(), anyio.Event()
        self._tasks.start_soon(self._run, started, self._running, self._gone)
        await started.wait()

    async def _run(
        self, started: anyio.Event, running: anyio.CancelScope, gone: anyio.Event
    ) -> None:
        self.engine, limits = self._prepare()
        server = Server(self.engine, limits)
        with running:
            async with anyio.create_task_group() as tasks:
                self._serving = tasks
                if self._tcp:
                    self._listener = await listen(self._endpoint, ServerSecurity(), ListenLimits())
                    self._endpoint = self._listener.endpoint
                    self.name = str(self._endpoint)
                    tasks.start_soon(self._listener.serve, server.serve_carrier)
                self.server = server
                started.set()
                await anyio.sleep_forever()
        gone.set()

    async def stop(self) -> None:
        """Let the server go down in order, at once: every operation gets its terminal."""
        assert self.server is not None
        await self._stop_listening()
        await self.server.drain(0)
        await self.kill()

    async def kill(self) -> None:
        """End the server without a word to anybody."""
        self.server = None
        await self._stop_listening()
        self._running.cancel()
        await self._gone.wait()

    async def _stop_listening(self) -> None:
        """Take nobody any more, before those who were here lose their connections and come back.

        CPython 3.11 leaves a socket open that it accepts in the moment in which it stops listening.
        """
        if self._listener is not None:
            await self._listener.aclose()
            self._listener = None

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Connection, None]:
        """A connection to what runs there."""
        self.connections += 1
        if self._tcp:
            async with connect(self._endpoint) as connection:
                yield connection
            return
        if self.server is None:
            raise PeerUnreachable(f"nobody is at {self.name}")
        assert self._serving is not None
        ours, theirs = memory_pair()
        self._serving.start_soon(self.server.serve_carrier, theirs)
        carrier = _Mutable(ours)
        self._carriers.append(carrier)
        async with over_carrier(cast(Carrier, carrier)) as connection:
            yield connection

    @property
    def running(self) -> int:
        """Operations that run there."""
        return len(self.server.admission) if self.server is not None else 0

    async def cut(self) -> None:
        """Let every connection of now be lost, while the server goes on (memory only)."""
        carriers, self._carriers = self._carriers, []
        for carrier in carriers:
            await carrier.aclose()

    def mute(self) -> None:
        """Let nothing arrive any more that is said on the connections of now (memory only)."""
        for carrier in self._carriers:
            carrier.muted = True

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens, when it does so at a port."""
        return self._endpoint


class Stage:
    """The hosts of one test."""

    def __init__(self, hosts: dict[str, Host]) -> None:
        self.hosts = hosts

    def __getitem__(self, at: int) -> Host:
        return list(self.hosts.values())[at]

    @asynccontextmanager
    async def pool(self, settings: PoolSettings | None = None) -> AsyncGenerator[Pool, None]:
        """A pool over all of them."""
        by_name = {host.name: host for host in self.hosts.values()}
        names = list(by_name)
        async with Pool.open(
            names, settings or quick(), connect=lambda name: by_name[name].connect()
        ) as pool:
            yield pool


def scripted(limits: ServerLimits | None = None, *, slots: int | None = None) -> Prepare:
    """Servers whose engines run so many calls at once."""
    return lambda: (ScriptedEngine(slots=slots), limits or ServerLimits())


@asynccontextmanager
async def stage(
    count: int = 1, prepare: Prepare | None = None, *, tcp: bool = False
) -> AsyncGenerator[Stage, None]:
    """So many hosts, a server running at each of them."""
    async with anyio.create_task_group() as tasks:
        hosts = {
            name: Host(name, tasks, prepare or scripted(), tcp=tcp)
            for name in (f"host-{number}" for number in range(count))
        }
        for host in hosts.values():
            await host.start()
        yield Stage(hosts)
        tasks.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what is about to become true."""
    with anyio.fail_after(SECONDS):
        while not condition():
            await anyio.lowlevel.checkpoint()
