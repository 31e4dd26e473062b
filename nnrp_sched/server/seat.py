"""One operation's part in a call that several may share. Plain state."""

from collections.abc import Callable

from nnrp_sched.engine.records import RequestState, ServedCall


class Seat:
    """One operation's part in a call."""

    __slots__ = ("end", "moved", "operation", "position", "served")

    def __init__(self, operation: str) -> None:
        self.operation = operation
        """The id that users see."""
        self.position = 0
        """The part of the answer that it reads next."""
        self.end: int | None = None
        """The part that it does not read any more, once it has left."""
        self.moved: Callable[[RequestState], None] | None = None
        self.served: Callable[[ServedCall], None] | None = None

    @property
    def wants(self) -> bool:
        """Whether it wants the answer to go on."""
        return self.end is None
