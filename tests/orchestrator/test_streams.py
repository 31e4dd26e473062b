"""Operators over streams: what comes out, what leaving them ends, and which trace an item has."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest

from nnrp_sched.profile import OutputTextDelta
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.errors import StreamCancelled
from nnrp_sched_orchestrator.stream import Stream
from nnrp_sched_orchestrator.streams import Item, Items, chunks, flatmap, merge, timeout
from nnrp_sched_orchestrator.trace import current_span
from nnrp_sched_orchestrator.work import Emit
from tests.support.programs import ENDLESS, SECONDS, Done, PlayedWork, program, until
from tests.support.serving import script

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]

Operator = Callable[[Stream[str, Any]], AbstractAsyncContextManager[Items[Any]]]


def played(agent: Agent, *events: str, **members: Any) -> Stream[str, Done]:
    """A stream of an agent that has these events."""
    return agent.start(PlayedWork(*events, **members))


OPERATORS: dict[str, Operator] = {
    "merge": lambda source: merge(source),
    "flatmap": lambda source: flatmap(source, lambda _item: None),
    "chunks": lambda source: chunks(source, 2),
    "timeout": lambda source: timeout(source, 5),
}
every_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)


async def events(items: Items[Item[str]]) -> list[str]:
    return [item.event async for item in items]


# --- what comes out -------------------------------------------------------------------------------


async def test_merged_streams_come_as_they_come_each_in_its_order() -> None:
    async with program() as (_, agent):
        slow, quick = PlayedWork("a", "b", holds=True), PlayedWork("x", "y", "z")
        streams = [agent.start(slow), agent.start(quick)]
        with anyio.fail_after(SECONDS):
            async with merge(*streams) as items:
                found = [await anext(items) for _ in range(5)]
                slow.go.set()
                assert await events(items) == []
    by_stream = {each.id: [i.event for i in found if i.stream_id == each.id] for each in streams}
    assert list(by_stream.values()) == [["a", "b"], ["x", "y", "z"]]
    assert items.receipts == ()


async def test_each_item_makes_a_stream_and_their_items_come_interleaved() -> None:
    async with program() as (_, agent):
        source = played(agent, "1", "skip", "2")

        def make(item: Item[str]) -> Stream[str, Done] | None:
            return None if item.event == "skip" else played(agent, item.event, item.event * 2)

        with anyio.fail_after(SECONDS):
            async with flatmap(source, make) as items:
                assert sorted(await events(items)) == ["1", "11", "2", "22"]


@pytest.mark.parametrize("at_once", [1, 3])
async def test_no_more_than_so_many_made_streams_run_at_once(at_once: int) -> None:
    made: list[PlayedWork] = []

    async with program() as (_, agent):

        def make(item: Item[str]) -> Stream[str, Done]:
            made.append(PlayedWork(item.event, holds=True))
            return agent.start(made[-1])

        source = played(agent, *"abcdefgh")
        with anyio.fail_after(SECONDS):
            async with flatmap(source, make, at_once=at_once) as items:
                found: list[str] = []
                async for item in items:
                    found.append(item.event)
                    running = [work for work in made if not work.go.is_set()]
                    assert len(running) <= at_once
                    running[0].go.set()
    assert sorted(found) == list("abcdefgh")


async def test_chunks_have_their_size_and_the_last_one_the_rest() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            async with chunks(played(agent, *"abcde"), 2) as items:
                found = [[item.event for item in part] async for part in items]
    assert found == [["a", "b"], ["c", "d"], ["e"]]


async def test_a_stream_that_says_nothing_in_time_is_an_error_and_is_cancelled() -> None:
    async with program() as (_, agent):
        work = PlayedWork("a", holds=True)
        stream = agent.start(work)
        with anyio.fail_after(SECONDS):
            async with timeout(stream, 0.05) as items:
                with pytest.raises(TimeoutError, match=r"no event came within 0\.05 s"):
                    async for item in items:
                        assert item.event == "a"
            assert len(work.stops) == 1
    (receipt,) = items.receipts
    assert (receipt.accepted, receipt.reason) == (True, "the block of its operator was left")


async def test_time_in_which_nobody_reads_does_not_count() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            async with timeout(played(agent, "a", "b"), 0.05) as items:
                assert (await anext(items)).event == "a"
                await anyio.sleep(0.1)
                assert await events(items) == ["b"]


async def test_operators_stand_on_each_other() -> None:
    async with program() as (_, agent):
        sources = [played(agent, *"ab"), played(agent, *"cd")]
        held = agent.start(PlayedWork("e", holds=True))
        with anyio.fail_after(SECONDS):
            async with (
                merge(*sources, held) as merged,
                flatmap(merged, lambda item: played(agent, item.event)) as mapped,
                timeout(mapped, 5) as timed,
                chunks(timed, 5) as parts,
            ):
                found = [item.event for item in await anext(parts)]
    assert sorted(found) == list("abcde")
    (receipt,) = merged.receipts
    assert receipt.accepted
    assert held.receipt == receipt


# --- errors ---------------------------------------------------------------------------------------


@every_operator
async def test_an_error_of_a_source_is_raised_and_stays(operator: Operator) -> None:
    async with program() as (_, agent):
        stream = played(agent, "a", raises=ValueError("broken"))
        with anyio.fail_after(SECONDS):
            async with operator(stream) as items:
                for _ in range(2):
                    with pytest.raises(ValueError, match="broken"):
                        async for _item in items:
                            pass
    assert items.receipts == ()


async def test_what_came_before_an_error_comes_before_it() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            async with chunks(played(agent, *"abc", raises=ValueError("broken")), 2) as items:
                found = [[item.event for item in await anext(items)] for _ in range(2)]
                with pytest.raises(ValueError, match="broken"):
                    await anext(items)
    assert found == [["a", "b"], ["c"]]


async def test_an_error_of_one_source_cancels_the_others_when_the_block_is_left() -> None:
    async with program() as (_, agent):
        good = PlayedWork("a", holds=True)
        streams = [agent.start(good), played(agent, raises=ValueError("broken"))]
        with anyio.fail_after(SECONDS):
            async with merge(*streams) as items:
                with pytest.raises(ValueError, match="broken"):
                    async for _ in items:
                        pass
            assert len(good.stops) == 1
    assert [receipt.accepted for receipt in items.receipts] == [True]


async def test_what_the_maker_of_streams_raises_is_raised() -> None:
    async with program() as (_, agent):

        def make(_item: Item[str]) -> Stream[str, Done]:
            raise LookupError("no such file")

        with anyio.fail_after(SECONDS):
            with pytest.raises(LookupError, match="no such file"):
                async with flatmap(played(agent, "a"), make) as items:
                    await anext(items)


@every_operator
async def test_a_source_that_somebody_else_cancels_is_no_silent_end(operator: Operator) -> None:
    async with program() as (_, agent):
        work = PlayedWork("a", holds=True)
        stream = agent.start(work)
        with anyio.fail_after(SECONDS):
            async with operator(stream) as items:
                await until(lambda: work.said == ["a"])
                await agent.cancel("by its owner")
                with pytest.raises(StreamCancelled, match="by its owner"):
                    async for _ in items:
                        pass


IMPOSSIBLE: list[Operator] = [
    lambda source: merge(),
    lambda source: flatmap(source, lambda _: None, at_once=0),
    lambda source: chunks(source, 0),
    lambda source: timeout(source, 0),
    lambda source: timeout(source, float("nan")),
]


@pytest.mark.parametrize("make", IMPOSSIBLE)
async def test_what_cannot_work_is_refused_before_it_starts(make: Operator) -> None:
    async with program() as (_, agent):
        stream = played(agent, "a")
        with pytest.raises(ValueError, match=r"merge|flatmap|chunks|timeout"):
            async with make(stream):
                pass
        assert (await stream.result()).status == "completed"


# --- leaving --------------------------------------------------------------------------------------


@every_operator
@pytest.mark.parametrize("how", ["left", "raised", "cancelled"])
async def test_leaving_an_operator_cancels_its_sources_in_the_engine(
    operator: Operator, how: str
) -> None:
    async with program() as (play, agent):
        stream: Any = agent.chat(ENDLESS, model="example-model")
        held: list[Items[Any]] = []
        with anyio.fail_after(SECONDS):
            await until(lambda: stream.timings.first_event is not None)
            with anyio.CancelScope() as scope:
                try:
                    async with operator(stream) as items:
                        held.append(items)
                        if how == "raised":
                            raise LookupError
                        if how == "cancelled":
                            scope.cancel()
                            await anyio.sleep_forever()
                except LookupError:
                    pass
            await play.idle()
    (receipt,) = held[0].receipts
    assert (receipt.state, receipt.accepted, receipt.authoritative) == ("running", True, True)
    assert stream.receipt == receipt
    assert receipt.tokens == 1


async def test_streams_that_were_made_are_cancelled_too() -> None:
    async with program() as (play, agent):
        source = played(agent, "a", "b", holds=True)
        with anyio.fail_after(SECONDS):
            async with flatmap(
                source, lambda _item: agent.chat(ENDLESS, model="example-model")
            ) as items:
                texts = [await anext(items), await anext(items)]
                assert all(isinstance(item.event, OutputTextDelta) for item in texts)
            await play.idle()
    assert len(items.receipts) == 3
    assert all(receipt.accepted for receipt in items.receipts)


async def test_a_slow_reader_makes_the_sources_wait() -> None:
    async with program() as (_, agent):
        work = PlayedWork(*(str(number) for number in range(2000)))
        stream = agent.start(work)
        with anyio.fail_after(SECONDS):
            async with merge(stream) as items:
                await anext(items)
                for _ in range(500):
                    await anyio.lowlevel.checkpoint()
                # What the stream buffers, the operator reads ahead, and one on the way at each end.
                assert len(work.said) < 256 + 16 + 10
                assert len(await events(items)) == 1999


# --- traces ---------------------------------------------------------------------------------------


class Run:
    """Work that uses an operator within its own stream."""

    def __init__(self, agent: Agent, operator: Operator, seen: list[str]) -> None:
        self.agent = agent
        self.operator = operator
        self.seen = seen
        self.played = PlayedWork()

    async def run(self, emit: Emit[str]) -> Done:
        """Note the span in which each step finds itself."""
        self.note()
        async with self.operator(played(self.agent, "a", "b")) as items:
            self.note()
            async for _ in items:
                self.note()
        self.note()
        return Done("completed")

    def note(self) -> None:
        span = current_span()
        assert span is not None
        self.seen.append(span.traceparent)

    async def stop(self, reason: str) -> Any:
        return await self.played.stop(reason)

    def partial(self, status: Any, error: Any) -> Done:
        return Done(status, error=error)

    state = PlayedWork().state


@every_operator
async def test_the_reader_keeps_its_own_trace_through_an_operator(operator: Operator) -> None:
    async with program() as (_, agent):
        seen: list[str] = []
        stream = agent.start(Run(agent, operator, seen), kind="run")
        with anyio.fail_after(SECONDS):
            await stream.result()
    assert set(seen) == {stream.traceparent}
    assert len(seen) >= 3


async def test_an_item_has_the_trace_of_its_stream() -> None:
    async with program() as (_, agent):
        streams = [played(agent, "a"), played(agent, "b")]
        with anyio.fail_after(SECONDS):
            async with (
                merge(*streams) as merged,
                timeout(merged, 5) as timed,
                chunks(timed, 2) as parts,
            ):
                (part,) = [each async for each in parts]
    assert {item.stream_id: item.traceparent for item in part} == {
        stream.id: stream.traceparent for stream in streams
    }
    assert len({item.traceparent.split("-")[2] for item in part}) == 2
    assert {item.traceparent.split("-")[1] for item in part} == {agent.traceparent.split("-")[1]}


async def test_a_stream_that_flatmap_makes_is_a_child_of_whom_the_operator_works_for() -> None:
    made: list[str] = []

    async with program() as (_, agent):

        def operator(source: Stream[str, Any]) -> Any:
            def make(_item: Item[str]) -> Stream[str, Done]:
                span = current_span()
                assert span is not None
                made.append(span.traceparent)
                return played(agent, "x")

            return flatmap(source, make)

        stream = agent.start(Run(agent, operator, []), kind="run")
        with anyio.fail_after(SECONDS):
            await stream.result()
    assert made == [stream.traceparent] * 2


async def test_a_model_stream_passes_through_whole() -> None:
    async with program() as (_, agent):
        stream = agent.chat(script(text=["a", "b"]), model="example-model")
        with anyio.fail_after(SECONDS):
            async with merge(stream) as items:
                deltas = [
                    item.event.delta
                    async for item in items
                    if isinstance(item.event, OutputTextDelta)
                ]
        assert "".join(deltas) == "ab"
        assert (await stream.result()).status == "completed"
