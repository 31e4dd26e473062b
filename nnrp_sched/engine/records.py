"""What crosses the engine port.

The records that clients get to see too are defined in `profile.scheduling`.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from nnrp_sched.profile.scheduling import (
    AbortReceipt,
    AbortState,
    QueuedRequest,
    QueueSnapshot,
    Reprioritized,
    ReprioritizeReason,
    RequestState,
    Source,
    Timings,
)

__all__ = [
    "AbortReceipt",
    "AbortState",
    "Caller",
    "ChatBody",
    "ChatCall",
    "EngineDescription",
    "QueueSnapshot",
    "QueuedRequest",
    "ReprioritizeReason",
    "Reprioritized",
    "RequestState",
    "ServedCall",
    "Source",
    "Timings",
]

ChatBody = dict[str, Any]
"""A decoded OpenAI object: a chat request body, a chat.completion or a chat.completion.chunk."""


class Caller(Struct, frozen=True):
    """Who asks, as far as the client told."""

    program: str | None = None
    """The agent run that the request belongs to."""
    agent: str | None = None
    parent: str | None = None
    """The agent that started this one."""
    operation: str | None = None
    """The id users see and cancel by: `<session>.<frame>` for NNRP, the external id for HTTP."""


class ServedCall(Struct, frozen=True):
    """What an engine knows of a call that has ended; None where it knows nothing."""

    timings: Timings = Timings()
    tokens: int | None = None
    """Output tokens, over all choices."""
    reason: str | None = None
    """The engine's finish reason, or what ended the call otherwise."""


class ChatCall(Struct, frozen=True):
    """One chat to serve."""

    request_id: str
    """Unique among the calls in flight; the handle for `Engine.abort`."""
    body: ChatBody
    """The request exactly as the client wrote it, `stream` included."""
    priority: int = 0
    """The engine's request priority; lower is sooner."""
    traceparent: str | None = None
    """A W3C traceparent for engines that take trace headers."""
    caller: Caller = Caller()
    moved: Callable[[RequestState], None] | None = None
    """Told where the call stands whenever the scheduler itself moved it; never by an engine without
    a live queue. Must not raise."""
    served: Callable[[ServedCall], None] | None = None
    """Told once, when the call has ended, however that came about. Must not raise."""

    @property
    def visible_id(self) -> str:
        """The id of this call in snapshots and receipts for users."""
        return self.caller.operation or self.request_id


class EngineDescription(Struct, frozen=True):
    """What an engine serves and which software it is."""

    family: str
    """`vllm` or `scripted`."""
    models: tuple[str, ...]
    """Model ids as clients name them in the body."""
    tool_calls: bool
    """Whether tool calls can come out of a chat."""
    version: str | None = None
    """The engine software's own version."""
    binding: str | None = None
    """The patch layer's family for that version, when it is active."""
    priority_policy: str | None = None
    """How the scheduler orders its queue: `priority`, `fcfs`, or None when that is not known."""
    max_model_len: int | None = None
    """Tokens of a prompt and its answer together that the models take; None when not known."""
    live_queue: bool = False
    """Whether snapshots, receipts and changes of priority come from the scheduler itself."""
