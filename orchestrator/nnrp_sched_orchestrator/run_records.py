"""What a run of an agent tells: its events and its result."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile import Event
from nnrp_sched_orchestrator.records import Receipt, StreamStatus, StreamTimings
from nnrp_sched_orchestrator.tool_messages import Message
from nnrp_sched_orchestrator.tool_stream import ToolEvent, ToolFinished, ToolResult


class TurnStarted(Struct, frozen=True):
    """The model is asked; the first turn is 1."""

    turn: int
    stream_id: str
    """The model call's."""


RunEvent = Event | ToolEvent | TurnStarted
"""In the order things happened; a tool's events may come between the model's."""


def of_run_itself(event: RunEvent) -> bool:
    """Whether neither its model calls nor its tools have told of it: they are streams too."""
    match event:
        case TurnStarted():
            return True
        case ToolFinished(result=result):
            return result.receipt is None  # Nothing was started.
        case _:
            return False


class RunResult(Struct, frozen=True):
    """What came of a run; of one that was cut short, what there was."""

    status: StreamStatus
    text: str
    """Of the last answer."""
    messages: tuple[Message, ...]
    """The whole transcript, the messages it began with included. It is valid as it is: each tool
    call in it has its answer."""
    turns: int = 0
    """How often the model was asked."""
    calls: tuple[ToolResult, ...] = ()
    """What came of the tool calls, in the order of the calls, turn after turn."""
    usage: dict[str, Any] | None = None
    """The token counts of all turns, added up."""
    error: NnrpSchedError | None = None
    receipt: Receipt | None = None
    timings: StreamTimings = StreamTimings(0.0)

    @property
    def tool_receipts(self) -> tuple[Receipt, ...]:
        """The proofs of how the tools ended."""
        return tuple(call.receipt for call in self.calls if call.receipt is not None)


def added_up(usages: Iterable[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Token counts together; None when there are none. What is no count is left out."""
    total: dict[str, Any] = {}
    for usage in usages:
        for name, count in (usage or {}).items():
            if type(count) is int:
                total[name] = total.get(name, 0) + count
    return total or None


def joint_receipt(stream_id: str, receipts: Iterable[Receipt], reason: str) -> Receipt:
    """The proof of an end that several pieces of work had to come to."""
    parts = list(receipts)
    missing = [part for part in parts if not part.authoritative]
    counted = [part.tokens for part in parts if part.tokens is not None]
    return Receipt(
        stream_id,
        state=parts[0].state if len(parts) == 1 else "local",
        accepted=not parts or any(part.accepted for part in parts),
        authoritative=not missing,
        tokens=sum(counted) if counted else None,
        latency_ms=max((part.latency_ms for part in parts), default=0.0),
        reason=reason,
        unconfirmed="; ".join(f"{each.stream_id}: {each.unconfirmed}" for each in missing) or None,
    )
