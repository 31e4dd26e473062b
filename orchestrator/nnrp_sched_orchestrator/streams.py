"""Operators over streams: merge, flatmap, chunks and timeouts. The only user of aiostream.

```python
async with merge(explorer, reviewer) as items:
    async for item in items:
        print(item.stream_id, item.event)
print(items.receipts)
```

Each operator is a block. Its sources are streams, or the items of another operator, read in tasks
of the block's own. Leaving the block, for whatever reason, cancels the sources that have not ended
and waits for their receipts. An error of a source is raised where its items come out, behind what
came before it.

aiostream takes each step of a source in a task of its own, which breaks sources that keep a cancel
scope or a context variable from one step to the next. So it is fed with the ends of memory streams
and nothing else, and what belongs to an event (its stream, its trace) travels in the item.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import Struct

from nnrp_sched.transport import background_tasks
from nnrp_sched_orchestrator.records import EventT, Receipt
from nnrp_sched_orchestrator.stream import Stream

try:
    from aiostream import stream as operators
except ImportError as fault:
    raise ImportError(
        f"{__name__} needs aiostream (GPL-3.0-or-later): pip install 'nnrp-sched[streams]'"
    ) from fault

T = TypeVar("T")

BUFFER: Final = 16
"""Items of one source that may be read ahead of the operator."""


class Item(Struct, Generic[EventT], frozen=True):
    """An event, and where it comes from."""

    stream_id: str
    traceparent: str
    """The W3C traceparent of its stream's span: what becomes of the event belongs below that."""
    event: EventT


class _Failure(Struct, frozen=True):
    """An error on its way through an operator, in the place of an item; the last of its source."""

    error: Exception


class Items(Generic[T]):
    """What comes out of an operator. For one reader, within the operator's block."""

    def __init__(self, take: Callable[[], Awaitable[T]], receipts: list[Receipt]) -> None:
        self._take = take
        self._receipts = receipts
        self._failure: Exception | None = None

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Of the streams that leaving the block has cancelled; complete once it was left."""
        return tuple(self._receipts)

    def __aiter__(self) -> AsyncIterator[T]:
        """The items themselves: they can be read once."""
        return self

    async def __anext__(self) -> T:
        """The next one. Raises the error of a source, and from then on always."""
        if self._failure is not None:
            raise self._failure
        try:
            return await self._take()
        except StopAsyncIteration:
            raise
        except Exception as error:
            self._failure = error
            raise

    def fail_next(self, error: Exception) -> None:
        """Raise this instead of the next item; for operators."""
        self._failure = error


Source = Stream[EventT, Any] | Items[Item[EventT]]
"""What an operator reads."""

_End = MemoryObjectReceiveStream[Item[EventT] | _Failure]


@asynccontextmanager
async def merge(*sources: Source[EventT]) -> AsyncGenerator[Items[Item[EventT]]]:
    """The items of several sources as they come, each source's own in their order.

    Ends when all have ended. Raises `ValueError` without any.
    """
    if not sources:
        raise ValueError("merge: give at least one stream")
    async with _reading() as reading:
        merged = operators.merge(*(reading.add(source) for source in sources))
        async with merged.stream() as streamer:
            yield Items(lambda: _next(streamer), reading.receipts)


@asynccontextmanager
async def flatmap(
    source: Source[EventT],
    make: Callable[[Item[EventT]], Stream[T, Any] | None],
    *,
    at_once: int = 8,
) -> AsyncGenerator[Items[Item[T]]]:
    """A stream for each item of the source, or none, and the items of all of these as they come.

    At most `at_once` of them run; the source waits meanwhile. What `make` raises is raised here.
    """
    if at_once < 1:
        raise ValueError(f"flatmap: at_once={at_once!r} lets nothing run")
    async with _reading() as reading:

        def start(item: Item[EventT] | _Failure, *_others: object) -> _End[T]:
            made: Stream[T, Any] | _Failure | None
            try:
                made = item if isinstance(item, _Failure) else make(item)
            except Exception as error:
                made = _Failure(error)
            return reading.add(made) if isinstance(made, Stream) else reading.ended(made)

        mapped = operators.flatmap(reading.add(source), start, task_limit=at_once)
        async with mapped.stream() as streamer:
            yield Items(lambda: _next(streamer), reading.receipts)


@asynccontextmanager
async def chunks(source: Source[EventT], size: int) -> AsyncGenerator[Items[list[Item[EventT]]]]:
    """The items of a source in lists of `size`; the last one, also before an error, may be shorter.

    A list comes once it is full.
    """
    if size < 1:
        raise ValueError(f"chunks: size={size!r} holds nothing")
    async with _reading() as reading:
        end: Any = reading.add(source)
        async with _stepped(operators.chunks(end, size)) as streamer:

            async def take() -> list[Item[EventT]]:
                part = await anext(streamer)
                good = [item for item in part if not isinstance(item, _Failure)]
                for item in part:
                    if isinstance(item, _Failure) and not good:
                        raise item.error
                    if isinstance(item, _Failure):
                        items.fail_next(item.error)
                return good

            items = Items(take, reading.receipts)
            yield items


@asynccontextmanager
async def timeout(source: Source[EventT], seconds: float) -> AsyncGenerator[Items[Item[EventT]]]:
    """The items of a source, which may not let the reader wait for one longer than `seconds`.

    Raises `TimeoutError` where it does. Time in which nobody reads does not count.
    """
    if not seconds > 0:
        raise ValueError(f"timeout: seconds={seconds!r} leaves no time")
    async with _reading() as reading:
        end: Any = reading.add(source)
        async with _stepped(operators.timeout(end, seconds)) as streamer:

            async def take() -> Item[EventT]:
                try:
                    return await _next(streamer)
                except TimeoutError as error:
                    raise TimeoutError(f"no event came within {seconds:g} s") from error

            yield Items(take, reading.receipts)


# --- reading --------------------------------------------------------------------------------------


class _Reading:
    """The sources of one operator: each is read in a task, none outlives the operator's block."""

    def __init__(self, tasks: TaskGroup) -> None:
        self.receipts: list[Receipt] = []
        self._tasks = tasks
        self._streams: list[Stream[Any, Any]] = []
        self._ends: list[MemoryObjectReceiveStream[Any]] = []

    def add(self, source: Source[EventT]) -> _End[EventT]:
        """Start to read a source; the end that its items come from."""
        send, receive = anyio.create_memory_object_stream[Item[EventT] | _Failure](BUFFER)
        self._hold(receive)
        if isinstance(source, Stream):
            self._streams.append(source)
            self._tasks.start_soon(_pump, _StreamItems(source), send)
        else:
            self._tasks.start_soon(_pump, source, send)
        return receive

    def ended(self, failure: _Failure | None) -> _End[Any]:
        """An end that nothing comes from, or an error."""
        send, receive = anyio.create_memory_object_stream[Any](1)
        self._hold(receive)
        with send:
            if failure is not None:
                send.send_nowait(failure)
        return receive

    def _hold(self, end: MemoryObjectReceiveStream[Any]) -> None:
        """See to an end's being closed: an operator that was never asked for an item does not."""
        self._ends = [each for each in self._ends if each.statistics().open_receive_streams]
        self._ends.append(end)
        self._streams = [each for each in self._streams if each.receipt is None]

    async def aclose(self) -> None:
        """Cancel the streams that have not ended, at once, and wait for their receipts."""
        for end in self._ends:
            end.close()
        async with anyio.create_task_group() as tasks:
            for stream in self._streams:
                if stream.receipt is None:
                    tasks.start_soon(self._cancel, stream)

    async def _cancel(self, stream: Stream[Any, Any]) -> None:
        self.receipts.append(await stream.cancel("the block of its operator was left"))


@asynccontextmanager
async def _reading() -> AsyncGenerator[_Reading]:
    async with background_tasks() as tasks:
        reading = _Reading(tasks)
        try:
            yield reading
        finally:
            with anyio.CancelScope(shield=True):
                await reading.aclose()


class _StreamItems(Generic[EventT]):
    """The events of a stream as items."""

    def __init__(self, stream: Stream[EventT, Any]) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[Item[EventT]]:
        return self

    async def __anext__(self) -> Item[EventT]:
        event = await anext(self._stream)
        return Item(self._stream.id, self._stream.traceparent, event)


async def _pump(
    source: AsyncIterator[Item[EventT]], end: MemoryObjectSendStream[Item[EventT] | _Failure]
) -> None:
    """Hand a source's items to an operator, and its error in the place of one."""
    async with end:
        # Broken, when the operator takes no more, because its block is being left.
        with suppress(anyio.BrokenResourceError):
            try:
                async for item in source:
                    await end.send(item)
            except anyio.BrokenResourceError:
                raise
            except Exception as error:
                await end.send(_Failure(error))


@asynccontextmanager
async def _stepped(operated: Any) -> AsyncGenerator[AsyncIterator[Any]]:
    """The steps of an operator whose types aiostream cannot tell."""
    async with operated.stream() as streamer:
        yield streamer


async def _next(streamer: AsyncIterator[T | _Failure]) -> T:
    item = await anext(streamer)
    if isinstance(item, _Failure):
        raise item.error
    return item
