"""pydantic-ai on a program of ours. Cases of users have their number in the test's name."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pydantic_ai import Agent
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelRequest

from nnrp_sched_orchestrator.embed.pydantic_ai import NnrpModel, NnrpStreamedResponse
from tests.support.embedding import Embedded, embedded
from tests.support.serving import MODEL

pytestmark = pytest.mark.anyio

ENDLESS = {"text": "x", "hold": True}
CALL = {"tool_calls": [{"name": "grep", "arguments": '{"pattern": "needle"}', "id": "call_1"}]}


@asynccontextmanager
async def pydantic(*turns: dict[str, Any]) -> AsyncGenerator[tuple[Embedded, NnrpModel]]:
    """An engine that answers so, and a model that leads to it."""
    async with embedded(turns=turns) as served:
        model = NnrpModel(served.agent, MODEL)
        try:
            yield served, model
        finally:
            await model.aclose()


async def test_a_run_calls_its_tools_and_answers() -> None:
    async with pydantic(CALL, {"text": "It is in line 7."}) as (served, model):
        agent = Agent(model)
        asked: list[str] = []

        @agent.tool_plain
        async def grep(pattern: str) -> str:
            asked.append(pattern)
            return "haystack.py:7"

        result = await agent.run("Where is it?")
        assert result.output == "It is in line 7."
        assert asked == ["needle"]
        assert result.usage.requests == 2
        assert result.usage.output_tokens == served.agent.spent.tokens
        assert served.agent.receipts == ()


async def test_a_streamed_run_tells_its_text_as_it_comes() -> None:
    async with pydantic({"text": "It is in line 7."}) as (served, model):
        async with Agent(model).run_stream("Where is it?") as run:
            deltas = [text async for text in run.stream_text(delta=True, debounce_by=None)]
        assert "".join(deltas) == "It is in line 7."
        assert len(deltas) > 1
        assert run.usage.output_tokens == served.agent.spent.tokens
        await served.idle()
        assert served.agent.receipts == ()


async def test_cancelling_a_streamed_response_ends_in_a_receipt() -> None:
    async with pydantic(ENDLESS) as (served, model):
        messages = [ModelRequest.user_text_prompt("Go on.")]
        async with model_request_stream(model, messages) as response:
            assert isinstance(response, NnrpStreamedResponse)
            async for _ in response:
                assert response.receipt is None
                await response.cancel()
                break
            receipt = response.receipt
            assert receipt is not None
            assert receipt.state == "running"
            assert (receipt.accepted, receipt.authoritative, receipt.tokens) == (True, True, 1)
            assert response.get().state == "interrupted"
        await served.idle()
        assert served.agent.receipts == (receipt,)


async def test_t26_cancelling_the_response_of_a_run_keeps_what_it_said() -> None:
    async with pydantic(ENDLESS) as (served, model):
        async with Agent(model).run_stream("Go on.") as run:
            async for _ in run.stream_text(debounce_by=None):
                await run.cancel()
                break
            (receipt,) = served.agent.receipts
            assert (receipt.accepted, receipt.authoritative) == (True, True)
            last = run.all_messages()[-1]
            assert last.kind == "response"
            assert (last.state, last.text) == ("interrupted", "x")
        await served.idle()


async def test_cancelling_a_response_that_has_ended_is_no_cancel() -> None:
    async with pydantic({"text": "done"}) as (served, model):
        messages = [ModelRequest.user_text_prompt("Go on.")]
        async with model_request_stream(model, messages) as response:
            async for _ in response:
                pass
            await response.cancel()
            assert response.get().state == "complete"
        assert served.agent.receipts == ()


async def test_leaving_a_run_early_stops_the_call() -> None:
    async with pydantic(ENDLESS) as (served, model):
        with pytest.raises(ZeroDivisionError):
            async with Agent(model).run_stream("Go on.") as run:
                async for _ in run.stream_text(debounce_by=None):
                    raise ZeroDivisionError
        receipt = await served.stopped()
        assert (receipt.accepted, receipt.authoritative) == (True, True)
        await served.idle()


@pytest.mark.parametrize("streamed", [False, True])
async def test_t26_cancelling_the_task_of_a_whole_run_stops_the_call(streamed: bool) -> None:
    async with pydantic(ENDLESS) as (served, model):
        agent = Agent(model)

        async def run() -> None:
            if streamed:
                async with agent.run_stream("Go on.") as run:
                    await run.get_output()
            else:
                await agent.run("Go on.")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await served.calls(1)
            tasks.cancel_scope.cancel()
        receipt = await served.stopped()
        assert (receipt.accepted, receipt.authoritative) == (True, True)
        await served.idle()


async def test_the_only_model_needs_no_name() -> None:
    async with embedded() as served:
        with pytest.raises(ValueError, match="name a model; the endpoints have: example-model"):
            NnrpModel(served.agent)
        model = NnrpModel(served.agent, MODEL, settings={"temperature": 0.0})
        assert (model.model_name, model.system) == (MODEL, "vllm")
        assert model.settings == {"temperature": 0.0}
        await model.aclose()
