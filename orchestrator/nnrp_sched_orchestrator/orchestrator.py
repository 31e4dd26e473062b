"""The orchestrator: programs of agents over a pool of few sessions.

```python
async with Orchestrator.connect("nnrp://127.0.0.1:7437") as orchestrator:
    async with orchestrator.program("fix-bug-42", budget=Budget(tokens=20_000)) as program:
        print(await program.chat("What is wrong here?").text())
```
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec
from opentelemetry.trace import TracerProvider

from nnrp_sched.transport import ClientSecurity
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.fair_queue import WEIGHTS
from nnrp_sched_orchestrator.link import Connect
from nnrp_sched_orchestrator.names import free_name
from nnrp_sched_orchestrator.owned_tasks import OwnedTasks
from nnrp_sched_orchestrator.pool import Pool
from nnrp_sched_orchestrator.pool_records import PoolSettings
from nnrp_sched_orchestrator.program_scope import AgentSettings, ProgramScope
from nnrp_sched_orchestrator.snapshot import OrchestratorSnapshot


class Orchestrator:
    """Programs, and the pool that carries their calls. Made by `connect`."""

    def __init__(
        self, pool: Pool, settings: AgentSettings, provider: TracerProvider | None = None
    ) -> None:
        self.pool = pool
        self._settings = settings
        self._provider = provider
        self._tasks = OwnedTasks()
        self._programs: dict[str, Agent] = {}

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        endpoints: str | Sequence[str],
        *,
        sessions: int | None = None,
        queue_limit: int | None = None,
        security: ClientSecurity | None = None,
        settings: AgentSettings | None = None,
        pool_settings: PoolSettings | None = None,
        provider: TracerProvider | None = None,
        connect: Connect | None = None,
    ) -> AsyncGenerator["Orchestrator", None]:
        """Connect to one endpoint or several, for the time of the block.

        `sessions` (2) carry the calls on each endpoint; up to `queue_limit` (1024) calls wait for
        one. These and `security` go into `pool_settings`. Spans go to `provider`, by default to
        that of the process; `connect` opens connections some other way than by address. Raises
        `EndpointError`, `SecurityError`, and `EndpointsUnavailable` when nobody answers.
        """
        given = {"sessions": sessions, "queue_limit": queue_limit, "security": security}
        changes = {name: value for name, value in given.items() if value is not None}
        wanted = msgspec.structs.replace(pool_settings or PoolSettings(), **changes)
        async with Pool.open(endpoints, wanted, connect=connect) as pool:
            orchestrator = cls(pool, settings or AgentSettings(), provider)
            try:
                yield orchestrator
            finally:
                with anyio.CancelScope(shield=True):
                    await orchestrator._finish()

    async def _finish(self) -> None:
        """Whatever is still going on ends, for a limited time."""
        for program in list(self._programs.values()):
            await program.cancel("the orchestrator was closed")
        await self._tasks.wait(self._settings.cancel_seconds)

    @asynccontextmanager
    async def program(
        self,
        name: str,
        *,
        budget: Budget | None = None,
        priority: int | None = None,
        deadline_seconds: float | None = None,
        weight: float = 1.0,
    ) -> AsyncGenerator[Agent, None]:
        """Run a program for the time of the block.

        Where a program of that name runs already, the new one gets a number behind it. `weight` is
        its share of the sessions beside other programs; `priority` and deadline are as for agents.
        Raises `ValueError` for a name or a number that cannot be one.
        """
        self._tasks.check_loop()
        least, most = WEIGHTS
        if not least <= weight <= most:
            raise ValueError(f"weight={weight!r}: use a number from {least:g} to {most:g}")
        free = free_name(name, self._programs, whose="a program's")
        scope = ProgramScope(free, self.pool, self._tasks, self._settings, weight, self._provider)
        program = Agent(
            scope, free, budget=budget, priority=priority, deadline_seconds=deadline_seconds
        )
        self._programs[free] = program
        try:
            async with program.at_work():
                yield program
        finally:
            del self._programs[free]

    def snapshot(self) -> OrchestratorSnapshot:
        """How everything stands, for a live view."""
        return OrchestratorSnapshot(
            tuple(program.snapshot() for program in self._programs.values()),
            self.pool.endpoints,
            self.pool.waiting,
            self.pool.in_flight,
            self.pool.jain(),
        )
