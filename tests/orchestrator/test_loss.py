"""Connections that are lost under calls: nothing runs twice, nothing is shown twice."""

import anyio
import pytest

from nnrp_sched.engine.records import ChatCall
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import ConnectionLost
from nnrp_sched.profile import OutputTextDelta
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.earlier_tries import TRIES
from nnrp_sched_orchestrator.errors import BudgetExceeded, EndpointsUnavailable, OperationLost
from nnrp_sched_orchestrator.features import Features
from tests.support.programs import ENDLESS, SECONDS, orchestra, program, until
from tests.support.server_stage import quick, scripted
from tests.support.serving import body, script
from tests.support.stepped_engine import SteppedEngine, stepped

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]

ONE = quick(sessions=1, max_in_flight=1)
AT_ONCE = ServerLimits(key_grace_seconds=0)
"""A server that ends a call as soon as its caller is lost: one that is killed here has a process to
share with the test."""


async def test_a_call_whose_connection_is_lost_fails_and_keeps_what_came() -> None:
    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(ENDLESS)
            await anext(stream)
            await play.hosts[0].cut()
            with pytest.raises(OperationLost, match="connection was lost") as caught:
                await anext(stream)
            assert isinstance(caught.value, ConnectionLost)
            assert caught.value.partial.text == "x"
            assert stream.partial.text == "x"
            receipt = stream.receipt
            assert receipt is not None
            assert (receipt.state, receipt.accepted, receipt.authoritative) == (
                "unknown",
                False,
                False,
            )
            assert receipt.unconfirmed is not None
            await play.idle()
            assert await agent.chat(body("again")).text() == "You said: again"


async def test_a_call_that_is_submitted_again_joins_the_one_that_runs() -> None:
    engine = SteppedEngine()
    async with program(lambda: (engine, ServerLimits())) as (play, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(stepped("a", "b", "c", "d"), on_loss="resubmit")
            engine.let(2)
            assert [await anext(stream), await anext(stream)] == [
                OutputTextDelta(0, "a"),
                OutputTextDelta(0, "b"),
            ]
            await play.hosts[0].cut()
            await until(lambda: play.hosts[0].connections == 2)
            engine.let(10)
            rest = [event async for event in stream]
            result = await stream.result()
        assert [event.delta for event in rest if isinstance(event, OutputTextDelta)] == ["c", "d"]
        assert (result.status, result.text) == ("completed", "abcd")
        assert len(engine.calls) == 1
        assert agent.spent.tokens == 4
        await play.idle()


async def test_a_call_that_is_submitted_again_can_be_cancelled() -> None:
    engine = SteppedEngine()
    async with program(lambda: (engine, ServerLimits())) as (play, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(stepped("a", "b", "c"), on_loss="resubmit")
            engine.let(1)
            await anext(stream)
            before = stream.state
            await play.hosts[0].cut()
            await until(lambda: play.hosts[0].connections == 2 and play.operations > 0)
            await until(lambda: stream.state.kind == before.kind)
            receipt = await stream.cancel("enough")
        assert receipt.accepted
        assert stream.partial.text == "a"
        assert len(engine.calls) == 1
        await play.idle()


async def test_an_answer_that_is_another_one_after_a_restart_ends_the_stream() -> None:
    answers = iter(["first answer", "another answer"])

    class FickleEngine(ScriptedEngine):
        def __init__(self) -> None:
            super().__init__()
            self.answer = next(answers)

        def stream(self, call: ChatCall):  # type: ignore[no-untyped-def]  # As the parent's.
            call.body["scripted"]["text"] = self.answer
            return super().stream(call)

    async with program(lambda: (FickleEngine(), AT_ONCE)) as (play, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(script(hold=True), on_loss="resubmit")
            assert [await anext(stream), await anext(stream)] == [
                OutputTextDelta(0, "first"),
                OutputTextDelta(0, " answer"),
            ]
            await play.hosts[0].kill()
            await play.hosts[0].start()
            with pytest.raises(OperationLost, match="another answer") as caught:
                await anext(stream)
            assert caught.value.partial.text == "first answer"
            assert stream.receipt is not None
            assert (stream.receipt.state, stream.receipt.accepted) == ("running", True)
            await play.idle()


@pytest.mark.parametrize("tcp", [False, True])
async def test_a_server_killed_and_restarted_under_load_runs_nothing_twice(tcp: bool) -> None:
    engines: list[SteppedEngine] = []

    def prepare() -> tuple[SteppedEngine, ServerLimits]:
        engines.append(SteppedEngine())
        return engines[-1], AT_ONCE

    async with orchestra(prepare, tcp=tcp) as play, play.orchestrator.program("p") as agent:
        with anyio.fail_after(SECONDS):
            failing = [agent.chat(stepped("a", "b"), seed=number) for number in range(10)]
            resuming = [
                agent.chat(stepped("a", "b"), seed=number, on_loss="resubmit")
                for number in range(10, 20)
            ]
            await until(lambda: len(engines[0].calls) == 20)
            engines[0].let(20)
            for stream in (*failing, *resuming):
                assert await anext(stream) == OutputTextDelta(0, "a")
            await play.hosts[0].kill()
            await play.hosts[0].start()
            await until(lambda: len(engines[-1].calls) == 10)
            engines[-1].let(100)
            for stream in failing:
                with pytest.raises(OperationLost):
                    await stream.text()
            for stream in resuming:
                assert await stream.text() == "ab"
        assert len(engines[-1].calls) == 10
        seeds = [call.body["seed"] for call in engines[-1].calls]
        assert sorted(seeds) == list(range(10, 20))
        assert agent.report is None


async def test_a_server_that_goes_down_in_order_is_a_lost_connection() -> None:
    async with program(scripted(AT_ONCE)) as (play, agent):
        with anyio.fail_after(SECONDS):
            failing = agent.chat(ENDLESS)
            resuming = agent.chat(script(text=["a ", "b"], hold=True), on_loss="resubmit")
            await anext(failing)
            assert await anext(resuming) == OutputTextDelta(0, "a ")
            await play.hosts[0].stop()
            await play.hosts[0].start()
            with pytest.raises(OperationLost, match="went down") as caught:
                await failing.text()
            assert caught.value.partial.text == "x"
            assert await anext(resuming) == OutputTextDelta(0, "b")
            await until(lambda: play.operations == 1)
            receipt = await resuming.cancel()
            assert receipt.accepted
            assert resuming.partial.text == "a b"


async def test_without_keys_a_call_that_was_submitted_is_not_submitted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Features, "idempotency", property(lambda _features: False))
    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(ENDLESS, on_loss="resubmit")
            await anext(stream)
            await play.hosts[0].cut()
            with pytest.raises(OperationLost, match="may have run"):
                await stream.text()


async def test_a_call_that_had_not_been_submitted_is_submitted_whatever_the_server_can() -> None:
    async with (
        orchestra(pool=ONE) as play,
        play.orchestrator.program("p") as agent,
    ):
        with anyio.fail_after(SECONDS):
            first = agent.chat(ENDLESS)
            await anext(first)
            second = agent.chat(body("patience"))
            await until(lambda: second.state.position == 0)
            await play.hosts[0].cut()
            with pytest.raises(OperationLost):
                await first.text()
            assert await second.text() == "You said: patience"


async def test_a_call_is_not_made_for_ever() -> None:
    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(ENDLESS, on_loss="resubmit")
            for number in range(1, TRIES + 1):
                await until(lambda number=number: play.hosts[0].connections == number)  # type: ignore[misc]
                await until(lambda: stream.state.kind == "running" and play.operations > 0)
                await play.hosts[0].cut()
            with pytest.raises(OperationLost, match=f"try {TRIES}"):
                await stream.text()
            await play.hosts[0].stop()


async def test_a_call_goes_on_elsewhere_when_its_endpoint_is_gone() -> None:
    async with (
        orchestra(scripted(AT_ONCE), count=2) as play,
        play.orchestrator.program("p") as agent,
    ):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(script(text="the same", hold=True), on_loss="resubmit")
            assert await anext(stream) == OutputTextDelta(0, "the")
            (at,) = [host for host in play.hosts.hosts.values() if host.running]
            (other,) = [host for host in play.hosts.hosts.values() if not host.running]
            await at.kill()
            await until(lambda: other.running == 1)
            assert await anext(stream) == OutputTextDelta(0, " same")
            receipt = await stream.cancel()
        assert receipt.endpoint == other.name
        assert stream.partial.text == "the same"


async def test_a_call_fails_when_no_endpoint_comes_back() -> None:
    pool = quick(unavailable_seconds=0.05)
    async with (
        orchestra(scripted(AT_ONCE), pool=pool) as play,
        play.orchestrator.program("p") as agent,
    ):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(ENDLESS, on_loss="resubmit")
            await anext(stream)
            await play.hosts[0].kill()
            with pytest.raises(EndpointsUnavailable):
                await stream.text()
            assert stream.partial.text == "x"


async def test_what_a_lost_server_has_spent_counts_where_another_one_begins_anew() -> None:
    budget = Budget(tokens=100)
    async with (
        orchestra(count=2, pool=ONE) as play,
        play.orchestrator.program("program", budget=budget) as agent,
    ):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(
                script(text=" w", repeat=200, delay_ms=1), on_loss="resubmit", affinity="a"
            )
            for _ in range(40):
                await anext(stream)
            before = next(host for host in play.hosts.hosts.values() if host.running)
            await before.kill()
            with pytest.raises(BudgetExceeded) as caught:
                await stream.result()
            partial = caught.value.partial
            assert partial is not None
            anew = (partial.usage or {})["completion_tokens"]
            assert partial.text == " w" * max(anew, 100 - anew)
            assert anew <= 60
            assert agent.spent.tokens == 100


async def test_what_was_lost_is_replaced_from_a_budget_that_has_more() -> None:
    async with (
        orchestra(count=2, pool=ONE) as play,
        play.orchestrator.program("program", budget=Budget(tokens=1000)) as agent,
    ):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(
                script(text=" w", repeat=60, delay_ms=1), on_loss="resubmit", max_tokens=60
            )
            for _ in range(40):
                await anext(stream)
            before = next(host for host in play.hosts.hosts.values() if host.running)
            await before.kill()
            assert await stream.text() == " w" * 60
            assert 100 <= agent.spent.tokens < 120
