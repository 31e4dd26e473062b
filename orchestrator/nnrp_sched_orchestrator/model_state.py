"""Where a model call stands, told in the words of streams. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from nnrp_sched.profile.scheduling import QueuedRequest
from nnrp_sched.wire import ProgressStage
from nnrp_sched_orchestrator.records import StateKind, StreamState
from nnrp_sched_orchestrator.ticket import Ticket

_BY_REQUEST_STATE: Final[Mapping[str, StateKind]] = MappingProxyType(
    {
        "admitting": "admitting",
        "waiting": "queued",
        "blocked": "queued",
        "preempted": "queued",
        "running": "running",
        "finished": "running",  # Its last events are on their way.
        "unknown": "admitting",
    }
)
_BY_STAGE: Final[Mapping[ProgressStage, StateKind]] = MappingProxyType(
    {
        ProgressStage.QUEUED: "queued",
        ProgressStage.EXECUTING: "running",
        ProgressStage.PRODUCING_PARTIAL: "running",
        ProgressStage.FINALIZING: "running",
        ProgressStage.COMPLETED: "running",
    }
)
"""Every other stage is some way of admitting."""


def pool_state(ticket: Ticket | None) -> StreamState:
    """The state of a call that has not left us."""
    if ticket is None or ticket.position is None:
        return StreamState("admitting")
    return StreamState("queued", ticket.position, ticket.estimate_ms, "pool")


def engine_state(place: QueuedRequest | None, stage: ProgressStage | None) -> StreamState:
    """The state of a call that a server has, by its queue and else by what it said of progress."""
    if place is not None:
        kind = _BY_REQUEST_STATE[place.state]
        if kind == "queued":
            return StreamState(kind, place.position, place.estimate_ms, "engine")
        return StreamState(kind)
    kind = "admitting" if stage is None else _BY_STAGE.get(stage, "admitting")
    return StreamState(kind, where="engine" if kind == "queued" else None)
