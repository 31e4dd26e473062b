"""Programs and agents: the tree, who may start what, how blocks are left."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest

from nnrp_sched.engine.records import ChatCall
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.profile import Event
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.errors import (
    AgentEnded,
    BudgetExceeded,
    DeadlineExceeded,
    StreamCancelled,
    ToolFailed,
    TooManyStreams,
)
from nnrp_sched_orchestrator.program_scope import AgentSettings
from nnrp_sched_orchestrator.records import ModelResult
from nnrp_sched_orchestrator.stream import Stream
from nnrp_sched_orchestrator.time_limit import NEVER
from tests.support.programs import ENDLESS, SECONDS, PlayedWork, orchestra, program, until
from tests.support.serving import body, script

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]


class WatchedEngine(ScriptedEngine):
    """Keeps the calls that it got."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[ChatCall] = []

    def stream(self, call: ChatCall):  # type: ignore[no-untyped-def]  # As the parent's.
        self.calls.append(call)
        return super().stream(call)


async def test_the_tree_has_paths_and_the_server_is_told_who_asks() -> None:
    engine = WatchedEngine()
    async with program(lambda: (engine, ServerLimits()), priority=3) as (_, root):
        with anyio.fail_after(SECONDS):
            async with root.agent("explorer") as explorer:
                async with explorer.agent("reader", priority=-2) as reader:
                    assert reader.path == "program/explorer/reader"
                    assert reader.parent is explorer
                    assert root.children == (explorer,)
                    assert explorer.children == (reader,)
                    await reader.chat(body(), role="critic", step=4).text()
                await explorer.chat(body()).text()
            await root.chat(body()).text()
    deep, below, top = engine.calls
    assert (deep.caller.program, deep.caller.agent, deep.caller.parent) == (
        "program",
        "explorer/reader",
        "explorer",
    )
    assert (below.caller.agent, below.caller.parent) == ("explorer", None)
    assert (top.caller.agent, top.caller.parent) == (None, None)
    assert [call.priority for call in engine.calls] == [-2, 3, 3]


async def test_agents_of_one_name_at_work_at_once_get_numbers() -> None:
    async with orchestra() as play:
        async with (
            play.orchestrator.program("p") as one,
            play.orchestrator.program("p") as other,
            one.agent("a") as first,
            one.agent("a") as second,
        ):
            assert (one.path, other.path) == ("p", "p~2")
            assert (first.path, second.path) == ("p/a", "p/a~2")
        async with play.orchestrator.program("p") as again, again.agent("a") as third:
            assert third.path == "p/a"


@pytest.mark.parametrize(
    "name", ["", " ", "a/b", "a#1", "x" * 257, "a\nb", "\x1b[31mred", "\ud800", "\x00", 5]
)
async def test_a_name_that_cannot_be_one_is_refused(name: Any) -> None:
    async with orchestra() as play:
        with pytest.raises(ValueError, match=r"name|longer"):
            async with play.orchestrator.program(name):
                pass
        async with play.orchestrator.program("p") as root:
            with pytest.raises(ValueError, match=r"name|longer"):
                async with root.agent(name):
                    pass
            assert root.children == ()


async def test_a_weight_that_cannot_be_one_is_refused() -> None:
    async with orchestra() as play:
        for weight in (0, -1, float("nan"), float("inf"), 1e9, 1e-9):
            with pytest.raises(ValueError, match=r"weight=.*from 0\.001 to 1000"):
                async with play.orchestrator.program("p", weight=weight):
                    pass


@pytest.mark.parametrize("priority", [2**40, -(2**40), 1.5, "1", True])
async def test_a_priority_that_no_engine_takes_is_refused_where_it_is_given(priority: Any) -> None:
    async with program() as (_, root):
        with pytest.raises(ValueError, match=r"priority=.*whole number"):
            async with root.agent("a", priority=priority):
                pass
        assert root.children == ()


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, NEVER])
async def test_time_without_end_is_no_limit(seconds: float) -> None:
    budget = Budget(seconds=seconds)
    async with program(budget=budget, deadline_seconds=seconds) as (_, root):
        with anyio.fail_after(SECONDS):
            text = await root.chat(body("hi"), deadline_seconds=seconds).text()
    assert text == "You said: hi"


async def test_another_event_loop_is_told_so_instead_of_waiting_for_ever() -> None:
    async with program() as (play, root):
        stream = root.chat(ENDLESS)
        await anext(stream)
        uses: list[Callable[[], Awaitable[object]]] = [
            lambda: anext(stream),
            stream.result,
            stream.text,
            stream.cancel,
            lambda: root.chat("hi").text(),
            lambda: play.orchestrator.program("other").__aenter__(),
            lambda: root.agent("other").__aenter__(),
        ]

        def elsewhere(use: Callable[[], Awaitable[object]]) -> None:
            async def call() -> None:
                with anyio.fail_after(SECONDS):
                    await use()

            asyncio.run(call())

        for use in uses:
            with pytest.raises(RuntimeError, match="another event loop"):
                await anyio.to_thread.run_sync(elsewhere, use)
        assert (await stream.cancel()).accepted


async def test_one_call_after_another_of_an_agent_stays_where_its_prefix_is_cached() -> None:
    async with orchestra(count=2) as play, play.orchestrator.program("p") as root:
        with anyio.fail_after(SECONDS):
            for name in ("a", "b", "c"):
                async with root.agent(name) as agent:
                    endpoints = set[str | None]()
                    for _ in range(6):
                        result = await agent.chat(body()).result()
                        assert result.receipt is not None
                        endpoints.add(result.receipt.endpoint)
                assert len(endpoints) == 1
            several = [root.chat(ENDLESS) for _ in range(10)]
            await until(lambda: play.operations == 10)
            report = await root.cancel()
        assert len({receipt.endpoint for receipt in report.receipts}) == 2
        assert len(several) == 10


# --- leaving --------------------------------------------------------------------------------------


async def test_leaving_a_block_waits_for_its_streams_and_those_below() -> None:
    async with orchestra() as play:
        with anyio.fail_after(SECONDS):
            async with play.orchestrator.program("p") as root:
                async with root.agent("a") as agent:
                    streams = [agent.chat(body(f"hello {number}")) for number in range(5)]
                assert all(stream.partial.status == "completed" for stream in streams)
                assert agent.receipts == ()
                assert agent.spent.model_calls == 5
        with pytest.raises(AgentEnded, match="it has ended"):
            agent.chat(body())
        with pytest.raises(AgentEnded):
            async with agent.agent("late"):
                pass


async def test_leaving_a_block_by_an_exception_cancels_its_cone_and_leaves_the_rest() -> None:
    async with program() as (play, root):
        with anyio.fail_after(SECONDS):
            other = root.chat(ENDLESS)
            await anext(other)
            agents: list[Agent] = []
            with pytest.raises(ZeroDivisionError):
                async with root.agent("a") as first, first.agent("b") as second:
                    agents += [first, second]
                    mine, deeper = first.chat(ENDLESS), second.chat(ENDLESS)
                    await anext(mine)
                    await anext(deeper)
                    raise ZeroDivisionError
            agent, below = agents
            assert [receipt.state for receipt in below.receipts] == ["running"]
            assert [receipt.state for receipt in agent.receipts] == ["running"]
            assert below.report is not None
            assert below.report.receipts == below.receipts
            assert "ZeroDivisionError" in below.receipts[0].reason
            assert other.state.kind == "running"
            assert play.operations == 1
            await other.cancel()


async def test_t21_cancelling_who_is_in_the_block_cancels_everything_below() -> None:
    async with program() as (play, root):
        agents: list[Agent] = []

        async def work() -> None:
            async with root.agent("a") as agent, agent.agent("b") as below:
                agents.extend([agent, below])
                streams = [agent.chat(ENDLESS), below.chat(ENDLESS)]
                for stream in streams:
                    await anext(stream)
                await anyio.sleep_forever()

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work)
                await until(lambda: play.operations == 2)
                tasks.cancel_scope.cancel()
            assert play.operations == 0
        receipts = [receipt for agent in agents for receipt in agent.receipts]
        assert [(each.accepted, each.authoritative) for each in receipts] == [(True, True)] * 2


async def test_a_block_left_while_it_waits_for_its_streams_cancels_them() -> None:
    async with program() as (play, root):
        with anyio.fail_after(SECONDS):
            streams: list[Stream[Event, ModelResult]] = []
            with anyio.move_on_after(0.05) as scope:
                async with root.agent("a") as agent:
                    streams.append(agent.chat(ENDLESS))
            assert scope.cancelled_caught
            assert streams[0].partial.status == "cancelled"
            await play.idle()


async def test_closing_the_orchestrator_ends_what_still_goes_on_in_other_tasks() -> None:
    statuses: list[str] = []
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks, orchestra() as play:
            began = anyio.Event()

            async def work() -> None:
                async with play.orchestrator.program("p") as root:
                    stream = root.chat(ENDLESS)
                    await anext(stream)
                    began.set()
                    statuses.append((await stream.result()).status)
                    with pytest.raises(AgentEnded, match="orchestrator was closed"):
                        root.chat(ENDLESS)

            tasks.start_soon(work)
            await began.wait()
    assert statuses == ["cancelled"]


# --- time -----------------------------------------------------------------------------------------


async def test_the_deadline_of_an_agent_ends_its_cone_and_keeps_it_from_starting() -> None:
    async with program() as (play, root):
        with anyio.fail_after(SECONDS):
            other = root.chat(ENDLESS)
            async with root.agent("a", deadline_seconds=0.05) as agent:
                async with agent.agent("b") as below:
                    stream = below.chat(ENDLESS)
                    with pytest.raises(DeadlineExceeded, match="'program/a'"):
                        await stream.result()
                    assert stream.receipt is not None
                    assert stream.receipt.accepted
                    with pytest.raises(DeadlineExceeded):
                        below.chat(ENDLESS)
                with pytest.raises(DeadlineExceeded):
                    async with agent.agent("c"):
                        pass
            assert play.operations == 1
            await other.cancel()


async def test_the_seconds_of_a_budget_are_a_budget() -> None:
    async with program(budget=Budget(seconds=0.5)) as (_, root):
        with anyio.fail_after(SECONDS):
            async with root.agent("a") as agent:
                stream = agent.chat(ENDLESS)
                with pytest.raises(BudgetExceeded, match="seconds budget of 'program'") as caught:
                    await stream.text()
                assert (caught.value.limit, caught.value.allowed) == ("seconds", 0.5)
                assert stream.partial.text == "x"
                with pytest.raises(BudgetExceeded):
                    agent.chat(ENDLESS)


# --- what may be started --------------------------------------------------------------------------


async def test_t18_a_tree_is_stopped_at_its_depth_and_its_fan_out() -> None:
    async with program(budget=Budget(depth=3, fan_out=2)) as (_, root):
        reached: list[str] = []
        refused: list[BudgetExceeded] = []

        async def spawn(agent: Agent) -> None:
            """As a runaway agent does: three more below each."""
            reached.append(agent.path)
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(below, agent, f"n{number}")

        async def below(agent: Agent, name: str) -> None:
            try:
                async with agent.agent(name) as child:
                    await spawn(child)
            except BudgetExceeded as error:
                refused.append(error)

        with anyio.fail_after(SECONDS):
            await spawn(root)
        assert max(path.count("/") for path in reached) == 3
        assert len(reached) == 1 + 2 + 4 + 8
        assert {error.limit for error in refused} == {"depth", "fan_out"}


async def test_t18_a_runaway_tree_stops_spending_at_its_tokens() -> None:
    async with program(budget=Budget(tokens=100)) as (_, root):
        spent_out: list[BudgetExceeded] = []

        async def spawn(agent: Agent, depth: int) -> None:
            try:
                await agent.chat(script(text=" w", repeat=30)).text()
                async with agent.agent("deeper") as child:
                    await spawn(child, depth + 1)
            except BudgetExceeded as error:
                spent_out.append(error)

        with anyio.fail_after(SECONDS):
            await spawn(root, 0)
        assert [error.limit for error in spent_out] == ["tokens"]
        assert root.spent.tokens == 100
        (error,) = spent_out
        assert error.owner == "program"
        assert error.spent["program"].tokens == 100
        assert error.spent["program/deeper"].tokens == 70


async def test_fan_out_counts_calls_tools_and_agents_and_no_runs() -> None:
    async with program(budget=Budget(fan_out=3)) as (_, root):
        with anyio.fail_after(SECONDS):
            run = root.start(PlayedWork(holds=True), kind="run", name="loop")
            tool = root.start(PlayedWork(holds=True), kind="tool", name="sleep")
            call = root.chat(ENDLESS)
            async with root.agent("a") as agent:
                with pytest.raises(BudgetExceeded, match="fan_out"):
                    root.chat(ENDLESS)
                with pytest.raises(BudgetExceeded, match="fan_out"):
                    root.start(PlayedWork(), kind="tool")
                own = agent.chat(ENDLESS)
                await own.cancel()
            another = root.start(PlayedWork("done"))
            assert await another.text() == "done"
            for stream in (run, tool, call):
                await stream.cancel()


async def test_model_calls_are_counted_over_the_tree() -> None:
    async with program(budget=Budget(model_calls=3)) as (_, root):
        with anyio.fail_after(SECONDS):
            await root.chat(body()).text()
            async with root.agent("a", budget=Budget(model_calls=1)) as agent:
                await agent.chat(body()).text()
                with pytest.raises(BudgetExceeded, match="model_calls budget of 'program/a'"):
                    agent.chat(body())
            await root.chat(body()).text()
            with pytest.raises(BudgetExceeded, match="model_calls budget of 'program'"):
                root.chat(body())
        assert root.spent.model_calls == 3


async def test_an_agent_has_only_so_many_streams_and_agents_whatever_its_budget() -> None:
    settings = AgentSettings(streams=2, children=1, depth=1)
    async with program(settings=settings) as (_, root):
        with anyio.fail_after(SECONDS):
            first, second = root.chat(ENDLESS), root.chat(ENDLESS)
            with pytest.raises(TooManyStreams, match="2 streams"):
                root.chat(ENDLESS)
            async with root.agent("a") as agent:
                with pytest.raises(TooManyStreams, match="1 agents below"):
                    async with root.agent("b"):
                        pass
                with pytest.raises(TooManyStreams, match="levels"):
                    async with agent.agent("c"):
                        pass
            await first.cancel()
            await second.cancel()


async def test_an_agent_keeps_its_last_receipts() -> None:
    async with program(settings=AgentSettings(receipts=3)) as (_, root):
        with anyio.fail_after(SECONDS):
            for number in range(5):
                await root.chat(ENDLESS).cancel(str(number))
        assert [receipt.reason for receipt in root.receipts] == ["2", "3", "4"]


async def test_a_snapshot_shows_the_tree_as_it_stands() -> None:
    async with orchestra() as play, play.orchestrator.program("p") as root:
        with anyio.fail_after(SECONDS):
            async with root.agent("a") as agent:
                stream = agent.chat(ENDLESS, model="example-model")
                await anext(stream)
                await root.chat(ENDLESS).cancel("not this one")
                seen = play.orchestrator.snapshot()
                await stream.cancel()
    (top,) = seen.programs
    (below,) = top.children
    assert (top.path, below.path) == ("p", "p/a")
    assert [receipt.reason for receipt in top.receipts] == ["not this one"]
    (row,) = below.streams
    assert (row.id, row.kind, row.name, row.state.kind, row.events) == (
        stream.id,
        "model",
        "example-model",
        "running",
        1,
    )
    assert [endpoint.endpoint for endpoint in seen.endpoints] == ["host-0"]
    assert seen.in_flight == 1
    assert seen.jain > 0


async def test_a_cancelled_agent_starts_nothing_more() -> None:
    async with program() as (_, root):
        with anyio.fail_after(SECONDS):
            async with root.agent("a") as agent, agent.agent("b") as below:
                stream = below.chat(ENDLESS)
                await anext(stream)
                report = await agent.cancel("no longer wanted")
                assert [receipt.reason for receipt in report.receipts] == ["no longer wanted"]
                with pytest.raises(AgentEnded, match="no longer wanted"):
                    below.chat(ENDLESS)
                with pytest.raises(StreamCancelled, match="no longer wanted"):
                    await anext(stream)
                again = await agent.cancel()
                assert again.receipts == ()
            await root.chat(body()).text()


async def test_a_tool_that_waits_for_its_own_stream_is_told_so_at_once() -> None:
    async with program() as (_, root):
        own: list[Stream[Any, Any]] = []

        async def waits() -> str:
            return (await own[0].text()) + "".join([str(event) async for event in own[0]])

        own.append(root.call_tool(waits))
        with anyio.fail_after(SECONDS):
            with pytest.raises(ToolFailed, match="waits for itself"):
                await own[0].text()
