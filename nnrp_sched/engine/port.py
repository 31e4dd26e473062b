"""The engine port: all that the server knows of whatever serves its chats.

A chat body goes in as OpenAI wrote it; what comes out are OpenAI chat chunks or one chat
completion. No NNRP term crosses the port in either direction (seed 000, section 1).
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol

from nnrp_sched.engine.records import (
    AbortReceipt,
    AbortState,
    ChatBody,
    ChatCall,
    EngineDescription,
    QueueSnapshot,
    Reprioritized,
)

__all__ = [
    "AbortBy",
    "AbortReceipt",
    "AbortState",
    "ChatBody",
    "ChatCall",
    "Engine",
    "EngineDescription",
]

AbortBy = Literal["id", "program", "agent"]
"""What the names given to `Engine.abort_operations` are."""


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

    def tokens(self, request_id: str) -> int | None:
        """Output tokens of a call so far, over all choices, by its handle; None when not known."""
        ...

    async def abort(self, request_id: str) -> AbortReceipt:
        """Stop a call by its handle, whatever its state; an unknown one gets a receipt too."""
        ...

    async def abort_operations(self, ids: Sequence[str], *, by: AbortBy) -> list[AbortReceipt]:
        """Stop live requests by what users know of them, whichever door they came in by.

        `by` id: the ids of snapshots (`ChatCall.visible_id`); one receipt for each, in that order,
        the unknown ones too. By program or agent: one receipt for each live request whose caller
        has exactly that name. Receipts carry the ids that users see.
        """
        ...

    async def queue(self) -> QueueSnapshot:
        """Every live request, of every door, those that wait in the order they will run."""
        ...

    async def reprioritize(self, request_id: str, priority: int) -> Reprioritized:
        """Change a waiting request's priority (lower is sooner) by its id as users see it."""
        ...
