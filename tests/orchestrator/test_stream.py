"""Streams: one handle, every way of leaving it, one end."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_orchestrator.errors import StreamAbandoned, StreamCancelled, ToolFailed
from nnrp_sched_orchestrator.owned_tasks import OwnedTasks
from nnrp_sched_orchestrator.records import Receipt, StreamStatus
from nnrp_sched_orchestrator.running import Running, StreamSettings
from nnrp_sched_orchestrator.stream import Stream
from nnrp_sched_orchestrator.trace import TraceSpan
from tests.support.programs import SECONDS, Done, PlayedWork, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]

PlayedStream = Stream[str, Done]
SMALL = StreamSettings(buffer_events=2)
BRIEF = StreamSettings(buffer_events=2, stall_seconds=0.01)


class Started:
    """Streams of a test; holds their inner parts, never a handle."""

    def __init__(self, tasks: OwnedTasks) -> None:
        self.tasks = tasks
        self.ended: list[str] = []
        self.runnings: list[Running[str, Done]] = []

    def start(self, work: PlayedWork, settings: StreamSettings | None = None) -> PlayedStream:
        """A stream over some work."""
        running = Running(
            f"s#{len(self.tasks)}",
            work,
            settings=settings or StreamSettings(),
            ended=lambda running: self.ended.append(running.id),
        )
        self.runnings.append(running)
        self.tasks.start(running.run(), running.id, TraceSpan("test").task_context())
        return Stream(running)


@asynccontextmanager
async def streams() -> AsyncGenerator[Started, None]:
    """Somewhere to start streams; at the end all have ended."""
    tasks = OwnedTasks()
    with anyio.fail_after(SECONDS):
        yield Started(tasks)
        assert await tasks.wait(SECONDS) == ()


async def test_a_stream_gives_its_events_in_order_and_then_its_result() -> None:
    async with streams() as it:
        work = PlayedWork("a", "b", "c")
        stream = it.start(work, SMALL)
        assert [event async for event in stream] == ["a", "b", "c"]
        result = await stream.result()
        assert (result.status, result.text) == ("completed", "abc")
        assert stream.state.kind == "done"
        assert await stream.text() == "abc"
    assert work.stops == []
    assert it.ended == [stream.id]


async def test_a_stream_starts_without_being_read() -> None:
    async with streams() as it:
        work = PlayedWork("a")
        stream = it.start(work)
        assert stream.state.kind == "admitting"
        await work.began.wait()
        assert await stream.text() == "a"


async def test_a_stream_that_has_ended_is_not_cancelled() -> None:
    async with streams() as it:
        work = PlayedWork("a")
        stream = it.start(work)
        await stream.result()
        assert await stream.cancel("late") == Receipt(stream.id)
        await stream.aclose()
        assert (await stream.result()).status == "completed"
        del stream
        gc.collect()
        await checkpoint()
    assert work.stops == []


Leave = Callable[[PlayedStream], Awaitable[None]]


async def by_task_cancellation(stream: PlayedStream) -> None:
    async with anyio.create_task_group() as tasks:

        async def read() -> None:
            async for _ in stream:
                tasks.cancel_scope.cancel()

        tasks.start_soon(read)


async def by_a_bare_asyncio_cancellation(stream: PlayedStream) -> None:
    async def read() -> None:
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    await checkpoint()
    await checkpoint()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_cancelling_who_waits_for_the_result(stream: PlayedStream) -> None:
    with anyio.move_on_after(0):
        await stream.result()


async def by_a_timeout(stream: PlayedStream) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.text(), 0.001)


async def by_a_timeout_of_one_step(stream: PlayedStream) -> None:
    await anext(stream)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.001)


async def by_break_in_a_block(stream: PlayedStream) -> None:
    async with stream:
        async for _ in stream:
            break


async def by_closing_it(stream: PlayedStream) -> None:
    await anext(stream)
    await stream.aclose()


async def by_an_exception_in_a_block(stream: PlayedStream) -> None:
    with pytest.raises(ZeroDivisionError):
        async with stream:
            async for _ in stream:
                raise ZeroDivisionError


async def by_cancelling_it(stream: PlayedStream) -> None:
    assert (await stream.cancel("enough")).accepted


async def by_cancelling_it_twice_at_once(stream: PlayedStream) -> None:
    receipts: list[Receipt] = []

    async def cancel() -> None:
        receipts.append(await stream.cancel())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        tasks.start_soon(cancel)
    assert receipts[0] == receipts[1]


WAYS: list[Leave] = [
    by_task_cancellation,
    by_a_bare_asyncio_cancellation,
    by_cancelling_who_waits_for_the_result,
    by_a_timeout,
    by_a_timeout_of_one_step,
    by_break_in_a_block,
    by_closing_it,
    by_an_exception_in_a_block,
    by_cancelling_it,
    by_cancelling_it_twice_at_once,
]


@pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)
async def test_t27_every_way_of_leaving_ends_the_work_once_with_what_it_had(leave: Leave) -> None:
    async with streams() as it:
        work = PlayedWork("a", holds=True)
        stream = it.start(work)
        await leave(stream)
        result = await stream.result()
        assert result.status == "cancelled"
        assert result.text in ("", "a")
        assert stream.receipt is not None
        assert stream.receipt.accepted
        again = await stream.cancel("again")
        assert again == stream.receipt
    assert len(work.stops) <= 1
    assert it.ended == [stream.id]


async def test_a_loop_left_by_break_ends_the_work_when_the_last_reference_is_gone() -> None:
    async with streams() as it:
        work = PlayedWork("a", holds=True)
        async for _ in it.start(work):
            break
        gc.collect()
        await until(lambda: bool(it.ended))
    assert work.stops == ["nobody holds the stream any more"]


async def test_a_stream_that_nobody_ever_held_ends() -> None:
    async with streams() as it:
        work = PlayedWork("a", holds=True)
        it.start(work)
        gc.collect()
        await until(lambda: bool(it.ended))
    assert len(work.stops) <= 1


async def test_a_stream_cancelled_before_its_task_ran_does_nothing() -> None:
    async with streams() as it:
        work = PlayedWork("a")
        stream = it.start(work)
        receipt = await stream.cancel("too early")
        assert receipt.reason == "too early"
        assert not work.began.is_set()


async def test_one_of_two_who_wait_may_leave_without_ending_the_stream() -> None:
    async with streams() as it:
        work = PlayedWork("a", holds=True)
        stream = it.start(work)
        texts: list[str] = []

        async def wait() -> None:
            texts.append(await stream.text())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await work.began.wait()
            with anyio.move_on_after(0.001):
                await stream.result()
            work.go.set()
        assert texts == ["a"]
    assert work.stops == []


async def test_a_failure_is_raised_to_readers_and_waiters_and_leaves_what_there_was() -> None:
    async with streams() as it:
        work = PlayedWork("a", raises=ToolFailed("broken"))
        stream = it.start(work)
        assert await anext(stream) == "a"
        with pytest.raises(ToolFailed, match="broken"):
            await anext(stream)
        with pytest.raises(ToolFailed, match="broken"):
            await stream.result()
        with pytest.raises(ToolFailed, match="broken"):
            await stream.text()
        assert stream.partial.status == "failed"
        assert stream.partial.text == "a"
        assert isinstance(stream.partial.error, ToolFailed)
    assert len(work.stops) == 1


async def test_a_failure_that_is_not_ours_is_raised_as_it_is() -> None:
    async with streams() as it:
        stream = it.start(PlayedWork(raises=KeyError("what")))
        with pytest.raises(KeyError, match="what"):
            await stream.result()
        assert stream.partial.status == "failed"


@pytest.mark.parametrize("error", [GeneratorExit(), BaseExceptionGroup("g", [GeneratorExit()])])
async def test_an_error_that_is_no_exception_ends_the_stream_and_nothing_else(
    error: BaseException,
) -> None:
    async with streams() as it:
        stream = it.start(PlayedWork("a", raises=error))
        with pytest.raises(RuntimeError, match="the work raised") as caught:
            await stream.result()
        assert caught.value.__cause__ is error
        assert stream.receipt is not None


async def test_a_cancellation_without_a_reason_makes_none_up() -> None:
    async with streams() as it:
        stream = it.start(PlayedWork("a", holds=True))
        await anext(stream)
        assert (await stream.cancel()).reason == ""


async def test_work_that_is_cancelled_from_inside_ends_as_cancelled() -> None:
    async with streams() as it:
        stream = it.start(PlayedWork("a", raises=asyncio.CancelledError()))
        result = await stream.result()
        assert result.status == "cancelled"
        with pytest.raises(StreamCancelled):
            await stream.text()


async def test_who_cancels_sees_an_end_and_who_is_cancelled_an_error() -> None:
    async with streams() as it:
        mine = it.start(PlayedWork("a", holds=True))
        assert await anext(mine) == "a"
        await mine.cancel("mine")
        assert [event async for event in mine] == []

        theirs = it.start(PlayedWork("a", holds=True))
        assert await anext(theirs) == "a"
        it.runnings[-1].end("theirs")
        with pytest.raises(StreamCancelled, match="theirs"):
            await anext(theirs)


async def test_events_that_were_not_read_can_still_be_read_after_the_end() -> None:
    async with streams() as it:
        stream = it.start(PlayedWork("a", "b"))
        await stream.result()
        assert [event async for event in stream] == ["a", "b"]


# --- bounds ---------------------------------------------------------------------------------------


async def test_work_waits_for_a_reader_that_is_slow() -> None:
    async with streams() as it:
        work = PlayedWork(*"abcdef")
        stream = it.start(work, SMALL)
        await anyio.wait_all_tasks_blocked()
        assert work.said == ["a", "b", "c"]  # Two are buffered, one waits for room.
        assert await anext(stream) == "a"
        await anyio.wait_all_tasks_blocked()
        assert work.said == ["a", "b", "c", "d"]
        assert [event async for event in stream] == list("bcdef")


async def test_a_full_stream_that_nobody_reads_is_stopped_after_a_while() -> None:
    async with streams() as it:
        work = PlayedWork(*"abcdef")
        stream = it.start(work, BRIEF)
        await until(lambda: bool(it.ended))
        assert [await anext(stream), await anext(stream)] == ["a", "b"]
        with pytest.raises(StreamAbandoned, match="nobody read") as caught:
            await anext(stream)
        assert caught.value.receipt.accepted
        assert caught.value.seconds == BRIEF.stall_seconds
        with pytest.raises(StreamAbandoned):
            await stream.result()
        assert stream.partial.text == "abc"
    assert work.stops == ["nobody reads it"]


async def test_a_reader_that_takes_one_event_in_time_keeps_the_stream() -> None:
    async with streams() as it:
        settings = StreamSettings(buffer_events=1, stall_seconds=0.2)
        stream = it.start(PlayedWork(*"abc"), settings)
        for event in "abc":
            await anyio.wait_all_tasks_blocked()
            assert await anext(stream) == event
        assert (await stream.result()).status == "completed"


async def test_a_stream_whose_result_is_awaited_needs_no_reader() -> None:
    async with streams() as it:
        stream = it.start(PlayedWork(*"abcdef"), BRIEF)
        assert await stream.text() == "abcdef"
        with pytest.raises(RuntimeError, match="given up"):
            await anext(stream)


async def test_who_waits_for_the_result_of_a_stream_that_is_full_already_frees_it() -> None:
    async with streams() as it:
        stream = it.start(PlayedWork(*"abcdef"), SMALL)
        await anyio.wait_all_tasks_blocked()
        assert await stream.text() == "abcdef"


async def test_a_reader_that_stops_reading_and_awaits_the_result_gets_it() -> None:
    async with streams() as it:
        stream = it.start(PlayedWork(*"abcdef"), BRIEF)
        assert await anext(stream) == "a"
        assert await stream.text() == "abcdef"


async def test_t16_cancelling_work_that_takes_no_notice_ends_in_time_and_says_so() -> None:
    settings = StreamSettings(stop_seconds=0.005)
    async with streams() as it:
        work = PlayedWork(holds=True)
        work.deaf = True
        stream = it.start(work, settings)
        await work.began.wait()
        receipt = await stream.cancel("now")
        assert not receipt.authoritative
        assert receipt.unconfirmed == "its work has not ended in 0.01 s"
        assert stream.receipt is None
        work.wake.set()
        assert (await stream.result()).status == "cancelled"


async def test_t16_stopping_that_takes_too_long_leaves_an_unconfirmed_receipt() -> None:
    async with streams() as it:
        work = PlayedWork(holds=True)
        work.stop_waits = anyio.Event()
        stream = it.start(work, StreamSettings(stop_seconds=0.005))
        await work.began.wait()
        receipt = await stream.cancel("now")
        assert receipt.unconfirmed == "stopping it took longer than 0.005 s"
        assert (receipt.authoritative, receipt.accepted) == (False, False)
        assert (await stream.result()).status == "cancelled"


async def test_stopping_that_fails_leaves_an_unconfirmed_receipt() -> None:
    async with streams() as it:
        work = PlayedWork(holds=True)
        work.stop_raises = OSError("no such process")
        stream = it.start(work)
        await work.began.wait()
        receipt = await stream.cancel("now")
        assert receipt.unconfirmed is not None
        assert "no such process" in receipt.unconfirmed
        assert (await stream.result()).status == "cancelled"


async def test_a_result_that_came_with_the_cancellation_is_the_result() -> None:
    async with streams() as it:
        work = PlayedWork("a")
        work.deaf = True
        stream = it.start(work)
        await work.began.wait()
        it.runnings[-1].end("too late")
        work.wake.set()
        assert (await stream.result()).status == "completed"
        assert not (await stream.cancel()).accepted
    assert work.stops == []


async def test_work_that_cannot_say_what_there_is_ends_all_the_same() -> None:
    class Mute(PlayedWork):
        def partial(self, status: StreamStatus, error: NnrpSchedError | None) -> Done:
            raise LookupError("nothing to say")

    async with streams() as it:
        stream = it.start(Mute("a", holds=True))
        assert await anext(stream) == "a"
        assert (await stream.cancel()).accepted
        with pytest.raises(LookupError, match="nothing to say"):
            await stream.result()
        with pytest.raises(LookupError, match="nothing to say"):
            await anext(stream)


async def test_a_stream_whose_loop_goes_down_has_an_unconfirmed_receipt() -> None:
    async with streams() as it:
        work = PlayedWork("a", holds=True)
        stream = it.start(work)
        await anext(stream)
        (task,) = (each for each in asyncio.all_tasks() if each.get_name() == stream.id)
        task.cancel()
        assert (await stream.result()).status == "cancelled"
        assert stream.receipt is not None
        assert stream.receipt.unconfirmed == "its task was cancelled from outside"
    assert work.stops == []


async def test_a_task_that_ends_in_an_error_of_its_own_harms_nobody() -> None:
    tasks = OwnedTasks()

    async def fail() -> None:
        raise NnrpSchedError("out of line")

    tasks.start(fail(), "failing", TraceSpan("test").task_context())
    with anyio.fail_after(SECONDS):
        assert await tasks.wait(SECONDS) == ()


async def test_tasks_that_do_not_end_are_named() -> None:
    tasks = OwnedTasks()
    go = anyio.Event()
    tasks.start(go.wait(), "stubborn", TraceSpan("test").task_context())
    assert await tasks.wait(0.001) == ("stubborn",)
    go.set()
    assert await tasks.wait(SECONDS) == ()
