"""What all agents of one program share."""

import itertools
from collections.abc import Iterator

from msgspec import Struct, field
from opentelemetry.trace import TracerProvider

from nnrp_sched_orchestrator.grants import Settlements
from nnrp_sched_orchestrator.owned_tasks import OwnedTasks
from nnrp_sched_orchestrator.pool import Pool
from nnrp_sched_orchestrator.running import StreamSettings


class AgentSettings(Struct, frozen=True):
    """Bounds of every agent, whatever its budget says. Times in seconds."""

    stream: StreamSettings = StreamSettings()
    depth: int = 32
    """Levels of agents below a program."""
    children: int = 256
    """Agents directly below one, at once."""
    streams: int = 1024
    """Streams of one agent, at once."""
    event_buffer: int = 1024
    """Unread events of `Agent.events`."""
    receipts: int = 1024
    """Receipts that an agent keeps; the oldest go first."""
    cancel_seconds: float = 10.0
    """How long leaving an agent's block by an exception waits for receipts."""


class ProgramScope(Struct, frozen=True):
    """The program's name, and what its agents work with."""

    name: str
    pool: Pool
    tasks: OwnedTasks
    settings: AgentSettings = AgentSettings()
    weight: float = 1.0
    """Its share of the pool."""
    provider: TracerProvider | None = None
    """Where spans go; None: to that of the process."""
    settlements: Settlements = field(default_factory=Settlements)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Numbers of streams, each once in the program."""
