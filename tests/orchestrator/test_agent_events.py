"""The events of all streams of an agent in one order."""

import gc

import anyio
import pytest

from nnrp_sched.errors import ReaderTooSlow
from nnrp_sched.profile import Completed, Event, OutputTextDelta
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.agent_events import AgentEvents
from nnrp_sched_orchestrator.program_scope import AgentSettings
from nnrp_sched_orchestrator.records import ModelResult, StreamEvent
from nnrp_sched_orchestrator.running import StreamSettings
from nnrp_sched_orchestrator.stream import Stream
from tests.support.programs import ENDLESS, SECONDS, PlayedWork, program
from tests.support.serving import script
from tests.support.stepped_engine import SteppedEngine, stepped

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]

SMALL = AgentSettings(stream=StreamSettings(stall_seconds=0.01), event_buffer=2)


async def test_events_of_model_and_tool_streams_come_in_one_numbered_order() -> None:
    engine = SteppedEngine()
    async with program(lambda: (engine, ServerLimits())) as (_, agent):
        with anyio.fail_after(SECONDS):
            events = agent.events()
            model = agent.chat(stepped("a", "b"))
            engine.let(1)
            first = await anext(events)
            tool = agent.start(PlayedWork("t"), kind="tool")
            second = await anext(events)
            engine.let(1)
            third = await anext(events)
    told = [first, second, third]
    assert [(each.stream_id, each.sequence) for each in told] == [
        (model.id, 1),
        (tool.id, 2),
        (model.id, 3),
    ]
    assert [each.event for each in told] == [OutputTextDelta(0, "a"), "t", OutputTextDelta(0, "b")]
    assert {each.agent for each in told} == {"program"}


async def test_the_events_end_with_the_agent_and_are_all_that_its_streams_had() -> None:
    collected: list[StreamEvent[object]] = []
    streams: list[Stream[Event, ModelResult]] = []

    async def collect(events: AgentEvents) -> None:
        collected.extend([event async for event in events])

    async with program() as (_, root):
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks, root.agent("a") as agent:
                tasks.start_soon(collect, agent.events())
                # More events than a stream's own buffer holds, and nobody reads the streams.
                streams += [agent.chat(script(text=" w", repeat=300)) for _ in range(3)]
            late = [event async for event in agent.events()]
    assert late == []
    assert [event.sequence for event in collected] == list(range(1, len(collected) + 1))
    for stream in streams:
        mine = [each.event for each in collected if each.stream_id == stream.id]
        assert sum(isinstance(event, OutputTextDelta) for event in mine) == 300
        assert isinstance(mine[-1], Completed)


async def test_other_agents_events_are_not_among_them() -> None:
    async with program() as (_, root):
        with anyio.fail_after(SECONDS):
            async with root.agent("a") as agent, root.events() as events:
                await agent.start(PlayedWork("theirs")).result()
                await root.start(PlayedWork("ours")).result()
                assert (await anext(events)).event == "ours"


async def test_only_one_listens_at_a_time() -> None:
    async with program() as (_, root):
        async with root.events():
            with pytest.raises(RuntimeError, match="being read already"):
                root.events()
        root.events()
        gc.collect()
        await anyio.lowlevel.checkpoint()
        async with root.events():
            pass


async def test_streams_wait_for_a_listener_that_is_slow() -> None:
    settings = AgentSettings(event_buffer=2)
    async with program(settings=settings) as (_, root):
        with anyio.fail_after(SECONDS):
            events = root.events()
            work = PlayedWork(*"abcdef")
            stream = root.start(work)
            await anyio.wait_all_tasks_blocked()
            assert work.said == ["a", "b", "c"]
            assert [(await anext(events)).event for _ in "abcdef"] == list("abcdef")
            await stream.result()


async def test_a_listener_that_reads_nothing_is_left_behind_and_told() -> None:
    async with program(settings=SMALL) as (_, root):
        with anyio.fail_after(SECONDS):
            events = root.events()
            stream = root.start(PlayedWork(*"abcdef"))
            assert await stream.text() == "abcdef"
            with pytest.raises(ReaderTooSlow):
                await anext(events)


async def test_cancelling_a_stream_that_waits_for_a_listener_ends_it_at_once() -> None:
    settings = AgentSettings(event_buffer=1)
    async with program(settings=settings) as (play, root):
        with anyio.fail_after(SECONDS):
            events = root.events()
            stream = root.chat(script(text=" w", repeat=1000, hold=True))
            await anyio.wait_all_tasks_blocked()
            receipt = await stream.cancel()
            assert receipt.accepted
            assert receipt.latency_ms < 1000
            await events.aclose()
            await root.chat(ENDLESS).cancel()
            await play.idle()
