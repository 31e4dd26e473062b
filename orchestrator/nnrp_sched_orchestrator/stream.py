"""One handle for every kind of work: a model call, a tool call, a run of an agent.

```python
async with agent.chat(messages) as stream:
    async for event in stream:
        ...
print(stream.receipt or await stream.text())
```

Every way of no longer wanting a stream ends its work the same way, once: cancelling the task that
reads it or waits for it, a timeout around that, an exception or `break` (exactly with `async with`
or `aclose`, else when the last reference is gone), `cancel`. A stream that has ended is never
cancelled.
"""

import weakref
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Generic, Self, cast

import anyio

from nnrp_sched_orchestrator.errors import StreamCancelled
from nnrp_sched_orchestrator.records import EventT, Receipt, StreamState, StreamTimings
from nnrp_sched_orchestrator.running import Running
from nnrp_sched_orchestrator.work import ResultT


class Stream(Generic[EventT, ResultT]):
    """Work that has started, and its events. Made by an agent.

    Its events go to one reader, from the beginning. Buffered are 256 of them; when that many are
    unread and nobody reads for 30 s, the work is stopped and the stream ends with
    `StreamAbandoned`. Awaiting the result (or the text) of a stream that nobody reads needs no
    reader.
    """

    def __init__(self, running: Running[EventT, ResultT]) -> None:
        self._running = running
        forgotten = weakref.finalize(self, running.forget)
        forgotten.atexit = False

    @property
    def id(self) -> str:
        """`<program>/<agent path>#<number>`."""
        return self._running.id

    @property
    def traceparent(self) -> str:
        """The W3C traceparent of its span; empty for one that no agent has made."""
        return self._running.traceparent

    @property
    def state(self) -> StreamState:
        """Where it stands now."""
        return self._running.state

    @property
    def partial(self) -> ResultT:
        """What there is so far; once it has ended, its result, however that came about."""
        return self._running.result

    @property
    def usage(self) -> dict[str, Any] | None:
        """The token counts, when known."""
        return self.partial.usage

    @property
    def timings(self) -> StreamTimings:
        """When things happened, so far."""
        return self.partial.timings

    @property
    def receipt(self) -> Receipt | None:
        """Proof of its end, once it has ended."""
        return self._running.receipt if self._running.over.is_set() else None

    # --- waiting for it -------------------------------------------------------------------------

    async def result(self) -> ResultT:
        """Wait for the end; the result, whose status tells a cancelled stream.

        Raises the error of a stream that failed; what it had by then is in `partial`. When the
        last who waits gives up waiting, the stream is cancelled.
        """
        running = self._running
        running.check_waiting()
        running.waiters += 1
        running.buffer.wake()
        try:
            await running.over.wait()
        except BaseException as error:
            if running.waiters == 1:
                running.end(_why(error), by_reader=True)
            raise
        finally:
            running.waiters -= 1
        if running.error is not None:
            raise running.error
        return running.result

    async def text(self) -> str:
        """Wait for the end; the whole text.

        Raises as `result` does, and `StreamCancelled` when it was cancelled: a text cannot tell
        that it is a part (`partial.text`).
        """
        result = await self.result()
        if result.status == "cancelled":
            raise StreamCancelled(self._proof)
        return result.text

    # --- reading it -----------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[EventT]:
        """The stream itself: it can be read once."""
        return self

    async def __anext__(self) -> EventT:
        """The next event.

        At the end raises the error of a stream that failed, and `StreamCancelled` when somebody
        else than its holder cancelled it.
        """
        running = self._running
        running.check_waiting()
        try:
            event = await running.buffer.take()
        except BaseException as error:
            if not running.waiters:
                running.end(_why(error), by_reader=True)
            raise
        if event is not None:
            return event
        if running.error is not None:
            raise running.error
        if running.result.status == "cancelled" and not running.by_reader:
            raise StreamCancelled(self._proof)
        raise StopAsyncIteration

    # --- ending it ------------------------------------------------------------------------------

    async def cancel(self, reason: str = "") -> Receipt:
        """Stop the work and wait for the proof; again, or after the end, the proof there is.

        Never waits for ever: after twice `stop_seconds` the receipt says what is not confirmed.
        """
        self._running.check_loop()
        self._running.end(reason, by_reader=True)
        return await self._running.proof(2 * self._running.settings.stop_seconds)

    async def aclose(self) -> None:
        """Leave the stream; stops its work when it has not ended, and waits for that."""
        if self._running.over.is_set():
            return
        with anyio.CancelScope(shield=True):
            await self.cancel("left early")

    async def __aenter__(self) -> Self:
        """Use the stream in a block that ends it."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the stream."""
        await self.aclose()

    @property
    def _proof(self) -> Receipt:
        return cast(Receipt, self._running.receipt)  # An ended stream always has one.


def _why(error: BaseException) -> str:
    return f"its reader left: {type(error).__name__}"
