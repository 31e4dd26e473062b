"""Orchestrators over scripted servers, and streams over work that does as it is told."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct
from opentelemetry.trace import TracerProvider

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.orchestrator import Orchestrator
from nnrp_sched_orchestrator.pool_records import PoolSettings
from nnrp_sched_orchestrator.program_scope import AgentSettings
from nnrp_sched_orchestrator.records import (
    Receipt,
    StreamState,
    StreamStatus,
    StreamTimings,
)
from nnrp_sched_orchestrator.work import Emit
from tests.support.server_stage import Host, Prepare, Stage, quick, stage
from tests.support.serving import script

SECONDS = 20

ENDLESS = script(text="x", hold=True)
"""Says one word, then waits to be aborted."""


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that is about to become true."""
    with anyio.fail_after(SECONDS):
        while not condition():
            await checkpoint()


class Play:
    """Servers, and an orchestrator over them."""

    def __init__(self, hosts: Stage, orchestrator: Orchestrator) -> None:
        self.hosts = hosts
        self.orchestrator = orchestrator

    @property
    def operations(self) -> int:
        """Operations that the servers have."""
        return sum(_operations(host) for host in self.hosts.hosts.values())

    async def idle(self) -> None:
        """Wait until the servers have no operation."""
        await until(lambda: self.operations == 0)


def _operations(host: Host) -> int:
    return 0 if host.server is None else len(host.server.admission)


@asynccontextmanager
async def orchestra(
    prepare: Prepare | None = None,
    *,
    count: int = 1,
    tcp: bool = False,
    pool: PoolSettings | None = None,
    settings: AgentSettings | None = None,
    provider: TracerProvider | None = None,
) -> AsyncGenerator[Play, None]:
    """So many servers and an orchestrator over them; nothing is left of it at the end."""
    async with stage(count, prepare, tcp=tcp) as hosts:
        by_name = {host.name: host for host in hosts.hosts.values()}
        async with Orchestrator.connect(
            list(by_name),
            pool_settings=pool or quick(),
            settings=settings,
            provider=provider,
            connect=lambda name: by_name[name].connect(),
        ) as orchestrator:
            yield Play(hosts, orchestrator)
        assert orchestrator.pool.in_flight == 0
        assert orchestrator.pool.waiting == 0


@asynccontextmanager
async def program(
    prepare: Prepare | None = None, *, settings: AgentSettings | None = None, **members: Any
) -> AsyncGenerator[tuple[Play, Agent], None]:
    """One program on one server; `members` are the program's."""
    async with (
        orchestra(prepare, settings=settings) as play,
        play.orchestrator.program("program", **members) as root,
    ):
        yield play, root


class Done(Struct, frozen=True):
    """What came of played work."""

    status: StreamStatus
    text: str = ""
    usage: dict[str, Any] | None = None
    error: NnrpSchedError | None = None
    receipt: Receipt | None = None
    timings: StreamTimings = StreamTimings(0.0)


class PlayedWork:
    """Emits its events, then waits to be let go, and ends with them or raises."""

    def __init__(
        self, *events: str, raises: BaseException | None = None, holds: bool = False
    ) -> None:
        self.events = events
        self.raises = raises
        self.go = anyio.Event()
        if not holds:
            self.go.set()
        self.said: list[str] = []
        self.stops: list[str] = []
        """The reasons of each stop."""
        self.began = anyio.Event()
        self.stop_waits: anyio.Event | None = None
        """What stopping it has to wait for."""
        self.stop_raises: Exception | None = None
        self.deaf = False
        """Whether it takes no notice of being cancelled."""
        self.wake = anyio.Event()
        self._receipt: Receipt | None = None

    async def run(self, emit: Emit[str]) -> Done:
        """Do as told."""
        self.began.set()
        for event in self.events:
            self.said.append(event)
            await emit(event)
        if self.deaf:
            with anyio.CancelScope(shield=True):
                await self.wake.wait()
        if not self.go.is_set():
            await self.go.wait()
        if self.raises is not None:
            raise self.raises
        return self.partial("completed", None)

    async def stop(self, reason: str) -> Receipt:
        """Prove it."""
        self.stops.append(reason)
        if self.stop_waits is not None:
            await self.stop_waits.wait()
        if self.stop_raises is not None:
            raise self.stop_raises
        self._receipt = Receipt("played", state="local", accepted=True, reason=reason)
        return self._receipt

    def partial(self, status: StreamStatus, error: NnrpSchedError | None) -> Done:
        """What was said."""
        return Done(status, "".join(self.said), error=error, receipt=self._receipt)

    @property
    def state(self) -> StreamState:
        """It runs."""
        return StreamState("running" if self.began.is_set() else "admitting")
