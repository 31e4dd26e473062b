"""Token budgets on a server: shared by calls at once, raised while they run, never exceeded."""

import anyio
import pytest

from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import ProfileError
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.errors import BudgetExceeded
from nnrp_sched_orchestrator.grants import CALL_TOKENS, MARGIN
from tests.support.programs import ENDLESS, SECONDS, orchestra, program, until
from tests.support.server_stage import quick
from tests.support.serving import script

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]


def words(count: int, **members: object) -> dict[str, object]:
    """A chat body whose answer has so many tokens."""
    return script(text=" w", repeat=count, **members)


async def test_a_call_within_its_budget_is_not_touched() -> None:
    async with program(budget=Budget(tokens=100)) as (_, root):
        with anyio.fail_after(SECONDS):
            result = await root.chat(words(60)).result()
        assert result.text == " w" * 60
        assert root.spent.tokens == 60
        assert root.tokens_left == 40


async def test_a_call_that_its_budget_cuts_fails_with_what_came() -> None:
    async with program(budget=Budget(tokens=50)) as (play, root):
        with anyio.fail_after(SECONDS):
            async with root.agent("a") as agent:
                stream = agent.chat(words(60))
                with pytest.raises(BudgetExceeded, match="tokens budget of 'program'") as caught:
                    await stream.result()
                error = caught.value
                assert error.partial is not None
                assert error.partial.text == " w" * 50
                assert error.partial.body is not None
                assert {path: spent.tokens for path, spent in error.spent.items()} == {
                    "program": 50,
                    "program/a": 50,
                }
                assert stream.partial.status == "failed"
                with pytest.raises(BudgetExceeded) as refused:
                    await agent.chat(words(1)).result()
                assert refused.value.partial is None
            await play.idle()
        assert root.spent.tokens == 50


async def test_what_a_call_asks_for_itself_is_no_budget() -> None:
    async with program(budget=Budget(tokens=50)) as (_, root):
        with anyio.fail_after(SECONDS):
            result = await root.chat(words(60), max_tokens=20).result()
            other = await root.chat(words(60), max_completion_tokens=10).result()
        assert (result.status, result.text) == ("completed", " w" * 20)
        assert (other.status, other.text) == ("completed", " w" * 10)
        assert root.spent.tokens == 30


async def test_several_answers_share_what_their_call_has() -> None:
    async with program(budget=Budget(tokens=50)) as (_, root):
        with anyio.fail_after(SECONDS):
            with pytest.raises(BudgetExceeded):
                await root.chat(words(100), n=4).result()
        assert root.spent.tokens == 48


async def test_calls_at_once_never_spend_more_than_there_is() -> None:
    async with program(budget=Budget(tokens=500)) as (_, root):
        exceeded: list[BudgetExceeded] = []
        completed: list[int] = []

        async def call(number: int) -> None:
            async with root.agent(f"a{number}", budget=Budget(tokens=200)) as agent:
                try:
                    result = await agent.chat(words(10 + number * 7)).result()
                    completed.append(len(result.text.split()))
                except BudgetExceeded as error:
                    exceeded.append(error)
                assert agent.spent.tokens <= 200

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(call, number)
        assert exceeded
        assert completed
        assert root.spent.tokens <= 500
        assert len(completed) + len(exceeded) == 20


async def test_a_long_call_gets_more_while_there_is_more() -> None:
    async with program(budget=Budget(tokens=20 * CALL_TOKENS)) as (_, root):
        with anyio.fail_after(SECONDS):
            result = await root.chat(words(3 * CALL_TOKENS)).result()
        assert result.status == "completed"
        assert root.spent.tokens == 3 * CALL_TOKENS


async def test_a_long_call_ends_in_time_when_others_have_the_rest() -> None:
    limit = 2 * CALL_TOKENS
    async with program(budget=Budget(tokens=limit)) as (play, root):
        with anyio.fail_after(SECONDS):
            other = root.chat(ENDLESS)
            await anext(other)
            with pytest.raises(BudgetExceeded) as caught:
                await root.chat(words(3 * CALL_TOKENS)).result()
            assert caught.value.partial is not None
            came = len(caught.value.partial.text.split())
            assert CALL_TOKENS - MARGIN <= came <= CALL_TOKENS
            await other.cancel()
            await play.idle()
        assert root.spent.tokens == came + 1


async def test_a_call_waits_until_another_gives_tokens_back() -> None:
    async with program(budget=Budget(tokens=100)) as (_, root):
        with anyio.fail_after(SECONDS):
            first = root.chat(ENDLESS)
            await anext(first)
            second = root.chat(words(30))
            await anyio.wait_all_tasks_blocked()
            assert second.state.kind == "admitting"
            await first.cancel()
            assert len((await second.text()).split()) == 30
        assert root.spent.tokens == 31


async def test_cancelling_a_call_that_waits_for_tokens_costs_nothing() -> None:
    async with program(budget=Budget(tokens=100)) as (_, root):
        with anyio.fail_after(SECONDS):
            first = root.chat(ENDLESS)
            await anext(first)
            second = root.chat(words(30))
            await anyio.wait_all_tasks_blocked()
            receipt = await second.cancel()
            assert (receipt.state, receipt.accepted, receipt.tokens) == ("queued", True, 0)
            await first.cancel()
        assert root.spent.tokens == 1


async def test_what_a_cancelled_call_had_made_is_spent() -> None:
    engine = ScriptedEngine()
    async with program(lambda: (engine, ServerLimits()), budget=Budget(tokens=1000)) as (_, root):
        with anyio.fail_after(SECONDS):
            stream = root.chat(words(900))
            await anext(stream)
            receipt = await stream.cancel()
        assert receipt.tokens is not None
        assert root.spent.tokens >= receipt.tokens >= 1
        assert root.tokens_left == 1000 - root.spent.tokens


async def test_a_call_that_fails_has_spent_what_came_of_it() -> None:
    async with program(budget=Budget(tokens=100)) as (play, root):
        with anyio.fail_after(SECONDS):
            stream = root.chat(ENDLESS)
            await anext(stream)
            await play.hosts[0].cut()
            with pytest.raises(Exception, match="lost"):
                await stream.result()
        assert root.spent.tokens == 1
        assert root.tokens_left == 99


async def test_the_pool_learns_what_each_agent_has_had() -> None:
    async with (
        orchestra(pool=quick(sessions=1)) as play,
        play.orchestrator.program("p") as root,
        root.agent("a") as agent,
    ):
        with anyio.fail_after(SECONDS):
            await agent.chat(words(99)).text()
            await root.chat(words(99)).text()
            assert play.orchestrator.pool.jain() == 1
            await root.chat(words(500)).text()
            await until(lambda: play.orchestrator.pool.jain() < 1)


async def test_a_budget_above_what_the_model_takes_at_all_keeps_no_call_from_being_made() -> None:
    def small() -> tuple[ScriptedEngine, ServerLimits]:
        return ScriptedEngine(max_model_len=4000), ServerLimits()

    async with program(small, budget=Budget(tokens=1_000_000)) as (_, root):
        with anyio.fail_after(SECONDS):
            assert await root.chat(words(3)).text() == " w w w"
            many = await root.chat(words(3), n=2).result()
            assert many.usage is not None
            assert root.spent.tokens == 3 + many.usage["completion_tokens"] == 9


@pytest.mark.parametrize("tokens", [2**53 + 1, 2**62])
async def test_a_budget_larger_than_a_server_can_read_is_told_as_far_as_it_can(tokens: int) -> None:
    async with program(budget=Budget(tokens=tokens)) as (_, root):
        with anyio.fail_after(SECONDS):
            assert await root.chat(words(3)).text() == " w w w"


@pytest.mark.parametrize("count", ["4", 4.0, True])
async def test_a_number_of_answers_that_could_be_read_in_two_ways_is_refused(count: object) -> None:
    async with program(budget=Budget(tokens=100)) as (_, root):
        with pytest.raises(ProfileError, match=r"n=.*whole number"):
            root.chat(words(3), n=count)
        assert root.spent.model_calls == 0
