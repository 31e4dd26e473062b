"""A program as it stands at one moment, for a live view."""

from typing import Literal

from msgspec import Struct

from nnrp_sched_orchestrator.pool_records import EndpointHealth
from nnrp_sched_orchestrator.records import Receipt, Spent, StreamState

StreamKind = Literal["model", "tool", "run"]
"""What a stream does: a call of a model or of a tool, or a whole run of an agent's loop."""


class StreamSnapshot(Struct, frozen=True):
    """One stream that has not ended."""

    id: str
    kind: StreamKind
    name: str
    """The model's, the tool's, or what the run is called."""
    state: StreamState
    events: int
    """How many events there were so far."""
    seconds: float
    """How long it has been there."""


class AgentSnapshot(Struct, frozen=True):
    """An agent, its streams, and those below it."""

    path: str
    ended: str | None
    """Why it starts nothing any more, if so."""
    spent: Spent
    streams: tuple[StreamSnapshot, ...]
    receipts: tuple[Receipt, ...]
    """Of its last streams that were stopped."""
    children: tuple["AgentSnapshot", ...]


class OrchestratorSnapshot(Struct, frozen=True):
    """Every program, and the endpoints."""

    programs: tuple[AgentSnapshot, ...]
    endpoints: tuple[EndpointHealth, ...]
    waiting: int
    """Calls that wait for a session."""
    in_flight: int
    jain: float
    """Jain's index of what agents have had; 1 is all alike."""
