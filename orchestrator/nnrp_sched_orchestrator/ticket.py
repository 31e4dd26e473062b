"""A place in a pool's queue, and the lease of a session that it turns into."""

import asyncio
import weakref
from types import TracebackType
from typing import Protocol

import anyio

from nnrp_sched.client import Chat, Session
from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_orchestrator.aborts import Aborts
from nnrp_sched_orchestrator.chat_abort import abort_chat
from nnrp_sched_orchestrator.features import Features
from nnrp_sched_orchestrator.flows import Item
from nnrp_sched_orchestrator.pool_records import Aborted
from nnrp_sched_orchestrator.slot import Slot


class Waiter:
    """A call that waits, as the queue holds it: without its ticket, which can be forgotten."""

    def __init__(self, affinity: str | None) -> None:
        self.affinity = affinity
        self.item: Item[Waiter] | None = None
        """Its place in the queue, also once it was taken from there."""
        self.slot: Slot | None = None
        """What it was given."""
        self.error: NnrpSchedError | None = None
        """Why it waits in vain."""
        self.settled = anyio.Event()
        """Set once it has one of both."""

    def settle(self, result: Slot | NnrpSchedError) -> None:
        """Its wait is over."""
        if isinstance(result, Slot):
            self.slot = result
        else:
            self.error = result
        self.settled.set()

    def wait_again(self) -> None:
        """What it was given is of no use any more."""
        self.slot = None
        self.settled = anyio.Event()


class Desk(Protocol):
    """The pool, as its tickets see it."""

    aborts: Aborts

    def requeue(self, waiter: Waiter) -> None:
        """It was given a session that was lost before it could use it: let it wait again."""
        ...

    def give_back(self, waiter: Waiter) -> None:
        """Take it out of the queue, or take back what it was given; once, however often called."""
        ...

    def position(self, waiter: Waiter) -> int | None:
        """How many go before it."""
        ...

    def estimate_ms(self, waiter: Waiter) -> float | None:
        """How long it will still wait."""
        ...


class Lease:
    """One call's place in a session. It is given back by leaving the ticket's block."""

    def __init__(self, slot: Slot, aborts: Aborts) -> None:
        self._slot = slot
        self._aborts = aborts

    @property
    def session(self) -> Session:
        """Where to make the call, one at a time; it does not wait for a place there."""
        return self._slot.session

    @property
    def endpoint(self) -> str:
        """The endpoint's address, as `EndpointHealth` names it."""
        return self._slot.endpoint

    @property
    def features(self) -> Features:
        """What its server declares; nothing else is to be used."""
        return self._slot.features

    @property
    def alive(self) -> bool:
        """Whether a call can still be made; one that runs ends by itself when it cannot."""
        return self._slot.alive

    async def abort(self, chat: Chat, reason: str = "", *, seconds: float = 5.0) -> Aborted:
        """End a chat of this lease's session in the engine; never waits longer than `seconds`.

        Together with all others that are asked for in the same turn of the loop; by CANCEL where
        the server cannot tell what it did. Raises nothing: `unconfirmed` says what was missing.
        """
        return await abort_chat(self._slot, self._aborts, chat, reason, seconds)


class Ticket:
    """A call that waits. One that is forgotten gives up its place. Made by `Pool.queue`."""

    def __init__(self, desk: Desk, waiter: Waiter) -> None:
        self._desk = desk
        self._waiter = waiter
        self._entered = False
        self._forgotten = weakref.finalize(self, _forget, asyncio.get_running_loop(), desk, waiter)
        self._forgotten.atexit = False

    @property
    def position(self) -> int | None:
        """How many calls go before it, as things stand; None once it waits no more."""
        return self._desk.position(self._waiter)

    @property
    def estimate_ms(self) -> float | None:
        """How long it will still wait at the present pace, when that is known."""
        return self._desk.estimate_ms(self._waiter)

    def withdraw(self) -> None:
        """Wait no more, and give back what it has got."""
        self._forgotten.detach()
        self._desk.give_back(self._waiter)

    async def __aenter__(self) -> Lease:
        """Wait for the turn.

        Raises `EndpointsUnavailable`, and `ConnectionLost` when the pool is closed meanwhile.
        """
        if self._entered:
            raise RuntimeError("a ticket is good for one block; ask the pool for another")
        self._entered = True
        try:
            return Lease(await self._turn(), self._desk.aborts)
        except BaseException:
            self.withdraw()
            raise

    async def _turn(self) -> Slot:
        while True:
            await self._waiter.settled.wait()
            if self._waiter.error is not None:
                raise self._waiter.error
            assert self._waiter.slot is not None
            if self._waiter.slot.alive:
                return self._waiter.slot
            self._desk.requeue(self._waiter)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the place back."""
        self.withdraw()


def _forget(loop: asyncio.AbstractEventLoop, desk: Desk, waiter: Waiter) -> None:
    """A ticket was garbage collected, in whatever thread that happened."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(desk.give_back, waiter)
