"""What a chat needs of the session it runs in."""

from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

from nnrp_sched.client.inbox import Inbox
from nnrp_sched.client.trace import SpanReference
from nnrp_sched.profile.scheduling import Reprioritized
from nnrp_sched.wire import ClientConnection

_SOONEST: Final = 0.001
_LATEST: Final = 2.0**63 / 1000
"""What whole milliseconds on the wire can say; 0 is no time there."""
_MOST_TOKENS: Final = 2**32 - 1

Command = Callable[[ClientConnection, int, int], bytes]
"""Makes the bytes of a message about a session's frame."""


class Submission(Struct, frozen=True):
    """An operation on the wire."""

    name: str
    """The id by which users see and cancel it, `<session>.<frame>`."""
    frame_id: int
    operation_id: int
    inbox: Inbox


class Conditions(Struct, frozen=True):
    """What goes out in one piece with a submit."""

    span: SpanReference | None = None
    """The parent of what the server does."""
    deadline: float | None = None
    """When the result is wanted, in seconds since 1970."""
    expire_at: float | None = None
    """When nobody has a use for it any more."""
    token_budget: int | None = None
    """How many output tokens it may have."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for what no message can say: before anything was sent."""
        for name, moment in (("deadline", self.deadline), ("expire_at", self.expire_at)):
            if moment is not None and not _SOONEST <= moment <= _LATEST:
                raise ValueError(f"{name}={moment!r} is no time in seconds since 1970")
        if self.token_budget is not None and not 0 <= self.token_budget <= _MOST_TOKENS:
            raise ValueError(f"token_budget={self.token_budget!r} is no number of tokens")


NO_CONDITIONS = Conditions()
"""A submit by itself."""


class Operations(Protocol):
    """The session, as its chats see it."""

    async def take_place(self) -> None:
        """Wait for a free place; it is to be used by `submit` or given back."""
        ...

    def give_place_back(self) -> None:
        """Leave a place unused."""
        ...

    def submit(self, document: bytes, *, newest_only: bool, conditions: Conditions) -> Submission:
        """Send the document as a new operation in a place taken before."""
        ...

    def tell(self, frame_id: int, command: Command) -> None:
        """Send a message about a frame that has not ended."""
        ...

    def cancel(self, frame_id: int, reason: str) -> None:
        """Send CANCEL for a frame that has not ended."""
        ...

    def abandon(self, frame_id: int) -> None:
        """Like `cancel`, from any thread, at any time."""
        ...

    async def reprioritize(self, name: str, priority: int) -> Reprioritized:
        """Ask the server to change an operation's priority."""
        ...
