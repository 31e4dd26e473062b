"""The engine port: all that the server knows of whatever serves its chats.

A chat body goes in as OpenAI wrote it; what comes out are OpenAI chat chunks or one chat
completion. No NNRP term crosses the port in either direction (seed 000, section 1).
"""

from collections.abc import AsyncGenerator
from typing import Any, Literal, Protocol

from msgspec import Struct

ChatBody = dict[str, Any]
"""A decoded OpenAI object: a chat request body, a chat.completion or a chat.completion.chunk."""

AbortState = Literal[
    "admitting", "waiting", "blocked", "running", "preempted", "finished", "unknown"
]
"""Where a request stood when its abort reached the engine (design, decision 5)."""


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


class AbortReceipt(Struct, frozen=True):
    """What an abort did."""

    request_id: str
    state: AbortState
    accepted: bool
    """True when this abort took the request out."""
    authoritative: bool
    """True when the scheduler itself said so; False when the engine only took the call."""
    tokens: int | None
    """Output tokens produced until then, when known."""
    latency_ms: float


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


class Engine(Protocol):
    """A serving engine. Every method raises `errors.BackendError` for a refusal or failure."""

    @property
    def description(self) -> EngineDescription:
        """What this engine serves; constant while it runs."""
        ...

    async def complete(self, call: ChatCall) -> ChatBody:
        """Serve a call whose body does not stream; returns a chat.completion.

        Cancelling it releases the request.
        """
        ...

    def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """Serve a streaming call; yields chat.completion.chunk objects in order.

        A refusal is raised by the first step of the iteration. Closing the generator early
        releases the request.
        """
        ...

    async def abort(self, request_id: str) -> AbortReceipt:
        """Stop a call, whatever its state; an unknown id gets a receipt too."""
        ...
