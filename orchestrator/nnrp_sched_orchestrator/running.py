"""The inner part of a stream: its work, run once, and its one end.

The task that runs it, and the agent, hold this part and never the handle (`stream.Stream`), so a
handle that everybody forgot is seen by the garbage collector and ends the work.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_orchestrator.errors import StreamAbandoned
from nnrp_sched_orchestrator.event_buffer import EventBuffer
from nnrp_sched_orchestrator.owned_tasks import check_loop
from nnrp_sched_orchestrator.records import EventT, Receipt, StreamState, StreamStatus
from nnrp_sched_orchestrator.tap import NO_TAP, Tap
from nnrp_sched_orchestrator.work import ResultT, Work

logger = logging.getLogger(__name__)

_ENDED_STATE = StreamState("done")

Because = Callable[[Receipt], NnrpSchedError]
"""Makes the error that a stopped stream fails with, out of the proof that it has stopped."""


class StreamSettings(Struct, frozen=True):
    """Bounds of every stream."""

    buffer_events: int = 256
    """Events that may be unread."""
    stall_seconds: float = 30.0
    """How long nobody may read a stream whose buffer is full."""
    stop_seconds: float = 5.0
    """How long stopping its work may take before the receipt says it is unconfirmed."""


class Running(Generic[EventT, ResultT]):
    """One piece of work between its start and its end."""

    def __init__(
        self,
        stream_id: str,
        work: Work[EventT, ResultT],
        *,
        settings: StreamSettings,
        tap: Tap = NO_TAP,
        ended: Callable[["Running[Any, Any]"], None] | None = None,
        traceparent: str = "",
    ) -> None:
        """`traceparent` is that of its span.

        `ended` is called once, when it has ended however that came about. Must not raise."""
        self.id = stream_id
        self.traceparent = traceparent
        self.settings = settings
        self.buffer = EventBuffer[EventT](settings.buffer_events)
        self.over = anyio.Event()
        """Set when it has ended and its result, error and receipt are known."""
        self.error: BaseException | None = None
        self.receipt: Receipt | None = None
        self.reason = ""
        """Why it was to end."""
        self.waiters = 0
        """How many wait for the result."""
        self.by_reader = False
        """Whether it was its own reader who ended it."""
        self._work = work
        self._tap = tap
        self._ended = ended
        self._result: ResultT | None = None
        self._ending = False
        self._because: Because | None = None
        self._scope = anyio.CancelScope()
        self._offers: set[anyio.CancelScope] = set()
        """Around handing an event to the tap."""
        self.events = 0
        """How many events there were so far."""
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None

    # --- seen from outside ----------------------------------------------------------------------

    @property
    def state(self) -> StreamState:
        """Where it stands."""
        return _ENDED_STATE if self.over.is_set() else self._work.state

    @property
    def ending(self) -> bool:
        """Whether it was told to end, or has ended."""
        return self._ending or self.over.is_set()

    @property
    def result(self) -> ResultT:
        """Its result; before the end what there is so far."""
        return self._work.partial("cancelled", None) if self._result is None else self._result

    @property
    def final(self) -> ResultT | None:
        """The result it ended with; None before the end, and when its work could not make one."""
        return self._result if self.over.is_set() else None

    def end(self, reason: str, because: Because | None = None, *, by_reader: bool = False) -> None:
        """Have it stopped, unless it has ended; the first call counts. Never waits.

        Without `because` it ends as cancelled, otherwise as failed with that error.
        """
        if self.ending:
            return
        self._ending = True
        self.reason, self._because, self.by_reader = reason, because, by_reader
        self.buffer.wake()
        for offer in self._offers:
            offer.cancel()
        self._scope.cancel(reason)

    def check_loop(self) -> None:
        """Raises `RuntimeError` outside of its event loop: waiting there would never end."""
        check_loop(self._loop, f"stream {self.id}")

    def check_waiting(self) -> None:
        """Raises `RuntimeError` where waiting for it would never end: there, and in its work."""
        self.check_loop()
        if asyncio.current_task() is self._task:
            raise RuntimeError(f"stream {self.id} waits for itself: its own work cannot read it")

    def forget(self) -> None:
        """Its handle was garbage collected, in whatever thread that happened."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.end, "nobody holds the stream any more")

    async def proof(self, seconds: float) -> Receipt:
        """The receipt of its end, or in so many seconds an unconfirmed one."""
        with anyio.move_on_after(seconds):
            await self.over.wait()
        return self.proof_now(seconds)

    def proof_now(self, seconds: float) -> Receipt:
        """The receipt as things stand, after `seconds` of waiting for the end."""
        if self.over.is_set() and self.receipt is not None:
            return self.receipt
        return self._unconfirmed(f"its work has not ended in {seconds:g} s")

    # --- its task -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do the work, whatever comes of it: the one task of the stream."""
        failure: BaseException | None = None
        self._task = asyncio.current_task()
        try:
            with self._scope:
                if not self._ending:
                    self._result = await self._work.run(self.emit)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                # The event loop itself goes down: nothing can be asked any more.
                self.receipt = self._unconfirmed("its task was cancelled from outside")
                self._finish(None)
                raise
            failure = error  # Something inside the work was cancelled, and not by us.
        except (KeyboardInterrupt, SystemExit):
            # They end the event loop, so that nothing can be asked any more.
            self.receipt = self._unconfirmed("the process was told to end")
            self._finish(None)
            raise
        except Exception as error:
            failure = error
        except BaseException as error:
            # An error of the work like any other: whoever waits must not wait for ever, nor must it
            # end tasks that only read.
            failure = RuntimeError(f"the work raised {error!r}")
            failure.__cause__ = error
        if self._result is None:
            self.receipt = await self._stop()
            failure = self._verdict(failure)
        self._finish(failure)

    async def emit(self, event: EventT) -> None:
        """Hand an event to whoever listens."""
        self.events += 1
        if self._tap.open and not self.ending:
            with anyio.CancelScope() as offer:
                self._offers.add(offer)
                try:
                    await self._tap.take(self.id, event)
                finally:
                    self._offers.remove(offer)
        while not self.ending and not self.buffer.put(event):
            await self._wait_for_room()
        if self.ending:
            await checkpoint()  # Work that does nothing but emit is cancelled here.

    async def _wait_for_room(self) -> None:
        wanted_elsewhere = self.waiters > 0 or self._tap.open
        if wanted_elsewhere and not self.buffer.was_read:
            self.buffer.give_up()
            return
        with anyio.move_on_after(self.settings.stall_seconds) as stall:
            await self.buffer.room()
        if not stall.cancelled_caught or not self.buffer.full:
            return
        if self.waiters > 0 or self._tap.open:
            self.buffer.give_up()
        else:
            seconds = self.settings.stall_seconds
            self.end("nobody reads it", lambda receipt: StreamAbandoned(receipt, seconds))

    async def _stop(self) -> Receipt:
        seconds = self.settings.stop_seconds
        reason = self.reason if self._ending else "its work has failed"
        why = f"stopping it took longer than {seconds:g} s"
        try:
            with anyio.move_on_after(seconds, shield=True):
                return await self._work.stop(reason)
        except Exception as fault:
            logger.exception("stream %s: its work could not be stopped", self.id)
            why = f"stopping it failed: {fault!r}"
        return self._unconfirmed(why)

    def _verdict(self, failure: BaseException | None) -> BaseException | None:
        """The error it ends with, if any: its own, or the one it was told to end with."""
        if failure is not None and not isinstance(failure, asyncio.CancelledError):
            return failure
        if not self._ending:
            self.reason = "the work was cancelled from inside"
        assert self.receipt is not None
        return None if self._because is None else self._because(self.receipt)

    def _finish(self, failure: BaseException | None) -> None:
        try:
            if self._result is None:
                known = failure if isinstance(failure, NnrpSchedError) else None
                status: StreamStatus = "cancelled" if failure is None else "failed"
                self._result = self._work.partial(status, known)
            if self.receipt is None:
                self.receipt = self._result.receipt or Receipt(self.id)
        except Exception as fault:
            logger.exception("stream %s: its partial result could not be made", self.id)
            failure = failure or fault
        finally:
            self.error = failure
            self.buffer.close()
            self.over.set()
            if self._ended is not None:
                self._ended(self)

    def _unconfirmed(self, why: str) -> Receipt:
        return Receipt(
            self.id,
            state="unknown",
            authoritative=False,
            reason=self.reason,
            unconfirmed=why,
        )


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
