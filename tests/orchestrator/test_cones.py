"""Cancelling a cone: everything below, one request an endpoint, receipts as the server has them."""

from collections.abc import Iterable

import anyio
import pytest

from nnrp_sched.engine.records import AbortReceipt
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.profile import Event
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.program_scope import AgentSettings
from nnrp_sched_orchestrator.records import ModelResult, Receipt
from nnrp_sched_orchestrator.running import StreamSettings
from nnrp_sched_orchestrator.stream import Stream
from tests.support.programs import ENDLESS, SECONDS, PlayedWork, orchestra, program, until
from tests.support.server_stage import quick
from tests.support.serving import script

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]

HURRIED = AgentSettings(stream=StreamSettings(stop_seconds=0.05), cancel_seconds=0.2)


class AccountingEngine(ScriptedEngine):
    """Keeps the receipts that it gave, request by request."""

    def __init__(self, slots: int | None = None) -> None:
        super().__init__(slots=slots)
        self.requests: list[list[AbortReceipt]] = []
        self.silent = anyio.Event()
        self.silent.set()

    async def abort_operations(self, ids, *, by):  # type: ignore[no-untyped-def]  # As the parent's.
        await self.silent.wait()
        receipts = await super().abort_operations(ids, by=by)
        self.requests.append(receipts)
        return receipts


def by_operation(receipts: Iterable[Receipt]) -> dict[str | None, Receipt]:
    return {receipt.operation: receipt for receipt in receipts}


async def test_a_cone_is_aborted_by_one_request_and_its_receipts_are_the_servers() -> None:
    engine = AccountingEngine(slots=3)
    async with program(lambda: (engine, ServerLimits())) as (play, root):
        with anyio.fail_after(SECONDS):
            async with root.agent("a") as agent, agent.agent("b") as below:
                kept = root.chat(ENDLESS)
                await anext(kept)
                running = [agent.chat(ENDLESS), below.chat(ENDLESS)]
                for stream in running:
                    await anext(stream)
                waiting = [below.chat(ENDLESS) for _ in range(4)]
                await until(lambda: play.operations == 7)
                report = await agent.cancel("enough", seconds=5)
            assert play.operations == 1
            (told,) = engine.requests
            await kept.cancel()
    assert report.unconfirmed == ()
    assert len(report.receipts) == len(running) + len(waiting)
    ours = by_operation(report.receipts)
    assert ours.keys() == {each.request_id for each in told}
    for theirs in told:
        mine = ours[theirs.request_id]
        assert (mine.state, mine.accepted, mine.authoritative, mine.tokens) == (
            theirs.state,
            theirs.accepted,
            theirs.authoritative,
            theirs.tokens,
        )
    states = sorted(receipt.state for receipt in report.receipts)
    assert states == ["running"] * 2 + ["waiting"] * 4
    assert report.tokens_spent == 2


async def test_a_cone_over_two_endpoints_is_aborted_by_one_request_each() -> None:
    engines = [AccountingEngine(), AccountingEngine()]
    given = iter(engines)
    async with (
        orchestra(lambda: (next(given), ServerLimits()), count=2) as play,
        play.orchestrator.program("p") as root,
    ):
        with anyio.fail_after(SECONDS):
            streams = [root.chat(ENDLESS, affinity=f"key-{number}") for number in range(10)]
            await until(lambda: play.operations == 10)
            report = await root.cancel()
        assert {receipt.endpoint for receipt in report.receipts} == {"host-0", "host-1"}
        assert [len(engine.requests) for engine in engines] == [1, 1]
        assert len(report.receipts) == len(streams)


async def test_a_cone_holds_what_waits_in_our_own_queue_and_tools_too() -> None:
    async with (
        orchestra(pool=quick(sessions=1, max_in_flight=1)) as play,
        play.orchestrator.program("p") as root,
    ):
        with anyio.fail_after(SECONDS):
            tool = PlayedWork(holds=True)
            streams = [root.chat(ENDLESS) for _ in range(3)]
            root_tool = root.start(tool, kind="tool", name="t")
            await anext(streams[0])
            await until(lambda: streams[2].state.position == 1)
            report = await root.cancel("all")
        assert sorted(receipt.state for receipt in report.receipts) == [
            "local",
            "queued",
            "queued",
            "running",
        ]
        assert tool.stops == ["all"]
        assert root_tool.receipt is not None
        assert play.orchestrator.pool.waiting == 0


async def test_t16_t25_what_no_server_confirms_is_named_and_nobody_waits_for_ever() -> None:
    engine = AccountingEngine()
    async with program(lambda: (engine, ServerLimits()), settings=HURRIED) as (play, root):
        with anyio.fail_after(SECONDS):
            stream = root.chat(ENDLESS)
            await anext(stream)
            play.hosts[0].mute()
            report = await root.cancel("now")
            (unconfirmed,) = report.unconfirmed
            assert unconfirmed.stream_id == stream.id
            assert not unconfirmed.accepted
            assert unconfirmed.unconfirmed is not None
            assert report.seconds < SECONDS
            assert stream.partial.status == "cancelled"
            assert stream.partial.text == "x"


async def test_t16_a_cone_whose_deadline_is_over_reports_what_is_still_on_its_way() -> None:
    async with program() as (_, root):
        with anyio.fail_after(SECONDS):
            work = PlayedWork(holds=True)
            work.stop_waits = anyio.Event()
            stuck = root.start(work, kind="tool")
            quick_one = root.chat(ENDLESS)
            await anext(quick_one)
            await work.began.wait()
            report = await root.cancel("now", seconds=0.5)
            assert [receipt.stream_id for receipt in report.unconfirmed] == [stuck.id]
            (confirmed,) = set(report.receipts) - set(report.unconfirmed)
            assert confirmed.accepted
            work.stop_waits.set()
            assert (await stuck.result()).status == "cancelled"


async def test_t25_a_cancelled_cone_makes_no_token_after_its_receipts() -> None:
    engine = AccountingEngine()
    async with program(lambda: (engine, ServerLimits())) as (_, root):
        with anyio.fail_after(SECONDS):
            streams = [
                root.chat(script(text=" w", repeat=1_000_000, delay_ms=0.1)) for _ in range(5)
            ]
            for stream in streams:
                await anext(stream)
            report = await root.cancel()
            snapshot = await engine.queue()
        assert snapshot.operations == ()
        for stream in streams:
            assert stream.receipt is not None
            assert stream.receipt.tokens is not None
            assert len(stream.partial.text.split()) <= stream.receipt.tokens
        assert report.tokens_spent == root.spent.tokens


async def test_a_tool_that_cancels_its_own_cone_is_cancelled_with_it() -> None:
    async with program() as (play, root):
        with anyio.fail_after(SECONDS):
            other = root.chat(ENDLESS)
            await anext(other)

            class Suicidal(PlayedWork):
                async def run(self, emit):  # type: ignore[no-untyped-def]  # As the parent's.
                    await root.cancel("from inside")
                    return await super().run(emit)

            stream = root.start(Suicidal("a"), kind="tool")
            assert (await stream.result()).status == "cancelled"
            await play.idle()


async def spawn(agent: Agent, depth: int, streams: list[Stream[Event, ModelResult]]) -> None:
    """A chain of agents, each with a call."""
    streams.append(agent.chat(ENDLESS))
    if depth:
        async with agent.agent("n") as child:
            await spawn(child, depth - 1, streams)
    else:
        await anyio.sleep_forever()


async def test_a_deep_chain_is_cancelled_from_any_level() -> None:
    async with program() as (play, root):
        streams: list[Stream[Event, ModelResult]] = []
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(spawn, root, 8, streams)
                await until(lambda: play.operations == 9)
                node = root
                for _ in range(4):
                    (node,) = node.children
                report = await node.cancel("from here")
                assert len(report.receipts) == 5
                assert play.operations == 4
                tasks.cancel_scope.cancel()
            assert play.operations == 1  # The program's own: nobody has left that.
            await streams[0].cancel()
            await play.idle()
