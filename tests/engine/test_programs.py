"""Programs on a real vLLM: cones end with the scheduler's receipts, token budgets hold exactly."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from nnrp_sched_orchestrator import grants
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.errors import BudgetExceeded
from nnrp_sched_orchestrator.orchestrator import Orchestrator
from nnrp_sched_patches.launch import Serving
from tests.support.serving import scripted_server
from tests.support.vllm_chats import body

pytestmark = pytest.mark.anyio

SECONDS = 120


@asynccontextmanager
async def program_on(serving: Serving, budget: Budget) -> AsyncGenerator[Agent, None]:
    """A program over two sessions of a server over the engine."""
    async with (
        scripted_server(serving.engine) as served,
        Orchestrator.connect(["engine"], connect=lambda _name: served.connect()) as orchestrator,
        orchestrator.program("real", budget=budget) as root,
    ):
        yield root


def endless(**members: Any) -> dict[str, Any]:
    """A chat that goes on as long as it may."""
    chat = body("Count.", ignore_eos=True, **members)
    return {name: chat[name] for name in chat if name != "max_tokens" or name in members}


async def test_agents_at_once_never_spend_more_than_their_program_has(serving: Serving) -> None:
    budget = Budget(tokens=200)
    async with program_on(serving, budget) as root:
        produced: list[int] = []

        async def call(number: int) -> None:
            async with root.agent(f"a{number}", budget=Budget(tokens=30)) as agent:
                stream = agent.chat(endless())
                with pytest.raises(BudgetExceeded):
                    await stream.result()
                usage = stream.usage or {"completion_tokens": 0}
                produced.append(usage["completion_tokens"])
                assert agent.spent.tokens == usage["completion_tokens"] <= 30

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(call, number)
        assert sum(produced) == root.spent.tokens == 200


@pytest.mark.parametrize("tokens", [1_000_000, 2_000])
async def test_a_budget_that_the_models_context_has_no_room_for_keeps_no_call_from_being_made(
    serving: Serving, tokens: int
) -> None:
    async with program_on(serving, Budget(tokens=tokens)) as root:
        with anyio.fail_after(SECONDS):
            chat = {name: value for name, value in body("Count.").items() if name != "max_tokens"}
            result = await root.chat(chat, stop=["."]).result()
        assert result.status == "completed"
        assert root.spent.tokens == (result.usage or {})["completion_tokens"]


async def test_a_budget_that_is_raised_while_a_call_runs_is_not_passed(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "CALL_TOKENS", 150)
    limit = 450
    async with program_on(serving, Budget(tokens=limit)) as root:
        with anyio.fail_after(SECONDS):
            async with root.agent("holding", budget=Budget(tokens=100)) as other:
                held = other.chat(endless())
                await anext(held)
                stream = root.chat(endless())
                with pytest.raises(BudgetExceeded) as caught:
                    await stream.result()
                with pytest.raises(BudgetExceeded):
                    await held.result()
        partial = caught.value.partial
        assert partial is not None
        assert partial.usage is not None
        # It was given 150 and then all that the other call had not.
        assert 300 - grants.MARGIN <= partial.usage["completion_tokens"] <= 350
        assert root.spent.tokens <= limit


async def test_a_cone_ends_with_the_scheduler_s_receipts_and_an_idle_engine(
    serving: Serving,
) -> None:
    async with program_on(serving, Budget()) as root:
        with anyio.fail_after(SECONDS):
            async with root.agent("a") as agent, agent.agent("b") as below:
                streams = [each.chat(endless(max_tokens=1500)) for each in (agent, below) * 6]
                for stream in streams[:2]:
                    await anext(stream)
                report = await agent.cancel("enough")
                snapshot = await serving.engine.queue()
        assert len(report.receipts) == 12
        assert report.unconfirmed == ()
        assert all(receipt.accepted for receipt in report.receipts)
        assert snapshot.operations == ()
        for stream in streams:
            assert stream.receipt is not None
            assert stream.receipt.tokens is not None
            assert stream.partial.status == "cancelled"
        assert root.spent.tokens == report.tokens_spent
