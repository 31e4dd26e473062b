"""A place in a pool's queue, and the lease of a session that it turns into."""

from types import TracebackType
from typing import Protocol

from nnrp_sched.client import Chat, Session
from nnrp_sched_orchestrator.features import Features
from nnrp_sched_orchestrator.pool_records import Aborted


class Lease(Protocol):
    """One call's place in a session. It is given back by leaving the ticket's block."""

    @property
    def session(self) -> Session:
        """Where to make the call, one at a time; it does not wait for a place there."""
        ...

    @property
    def endpoint(self) -> str:
        """The endpoint's address, as `EndpointHealth` names it."""
        ...

    @property
    def features(self) -> Features:
        """What its server declares; nothing else is to be used."""
        ...

    async def abort(self, chat: Chat, reason: str = "", *, seconds: float = 5.0) -> Aborted:
        """End a chat of this lease's session in the engine; never waits longer than `seconds`.

        Together with all others that are asked for in the same turn of the loop; by CANCEL where
        the server cannot tell what it did. Raises nothing: `unconfirmed` says what was missing.
        """
        ...


class Ticket(Protocol):
    """A call that waits. One that is forgotten gives up its place."""

    @property
    def position(self) -> int | None:
        """How many calls go before it, as things stand; None once it waits no more."""
        ...

    @property
    def estimate_ms(self) -> float | None:
        """How long it will still wait at the present pace, when that is known."""
        ...

    def withdraw(self) -> None:
        """Wait no more, and give back what it has got."""
        ...

    async def __aenter__(self) -> Lease:
        """Wait for the turn. Raises `EndpointsUnavailable`."""
        ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the place back."""
        ...
