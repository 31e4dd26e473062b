"""The OpenAI Agents SDK on a program of ours. Cases of users have their numbers in the names."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import openai
import pytest
from agents import (
    Agent,
    ModelRetryAdviceRequest,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    Runner,
    UserError,
    function_tool,
    retry_policies,
)
from agents.items import ItemHelpers

from nnrp_sched_orchestrator.embed.openai_agents import NnrpModel, NnrpProvider
from nnrp_sched_orchestrator.embed.records import EmbedSettings
from tests.support.embedding import Embedded, embedded
from tests.support.serving import MODEL

pytestmark = pytest.mark.anyio

ENDLESS = {"text": "x", "hold": True}
CALL = {"tool_calls": [{"name": "grep", "arguments": '{"pattern": "needle"}', "id": "call_1"}]}


@asynccontextmanager
async def sdk(
    *turns: dict[str, Any], settings: EmbedSettings | None = None, **options: Any
) -> AsyncGenerator[tuple[Embedded, RunConfig]]:
    """An engine that answers so, and a run configuration that leads to it."""
    async with embedded(turns=turns) as served:
        provider = NnrpProvider(served.agent, MODEL, settings=settings, **options)
        served.gateway = provider.gateway
        try:
            yield served, RunConfig(model_provider=provider, tracing_disabled=True)
        finally:
            await provider.aclose()


async def test_a_run_calls_its_tools_and_answers() -> None:
    asked: list[str] = []

    @function_tool
    async def grep(pattern: str) -> str:
        asked.append(pattern)
        return "haystack.py:7"

    agent = Agent(name="Explorer", instructions="Look.", tools=[grep])
    async with sdk(CALL, {"text": "It is in line 7."}) as (served, config):
        result = await Runner.run(agent, "Where is it?", run_config=config)
        assert result.final_output == "It is in line 7."
        assert asked == ["needle"]
        assert [call.body["messages"][-1]["role"] for call in served.engine.calls] == [
            "user",
            "tool",
        ]
        assert result.context_wrapper.usage.requests == 2
        assert result.context_wrapper.usage.output_tokens == served.agent.spent.tokens
        assert served.agent.spent.model_calls == 2
        assert served.agent.receipts == ()


async def test_a_streamed_run_tells_text_and_tool_calls_as_they_come() -> None:
    @function_tool
    async def grep(pattern: str) -> str:
        return f"{pattern}: haystack.py:7"

    agent = Agent(name="Explorer", tools=[grep])
    async with sdk(CALL, {"text": "It is in line 7."}) as (served, config):
        run = Runner.run_streamed(agent, "Where is it?", run_config=config)
        deltas: list[str] = []
        items: list[str] = []
        async for event in run.stream_events():
            if event.type == "raw_response_event":
                if event.data.type == "response.output_text.delta":
                    deltas.append(event.data.delta)
            elif event.type == "run_item_stream_event":
                items.append(event.name)
        assert "".join(deltas) == run.final_output == "It is in line 7."
        assert len(deltas) > 1
        assert items == ["tool_called", "tool_output", "message_output_created"]
        assert ItemHelpers.text_message_outputs(run.new_items) == "It is in line 7."
        await served.idle()
        assert served.agent.receipts == ()


async def test_t28_cancelling_a_streamed_run_stops_the_call_with_a_receipt() -> None:
    async with sdk(ENDLESS) as (served, config):
        run = Runner.run_streamed(Agent(name="Explorer"), "Go on.", run_config=config)
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type.endswith("text.delta"):
                run.cancel()
        receipt = await served.stopped()
        assert (receipt.state, receipt.accepted, receipt.authoritative) == ("running", True, True)
        assert receipt.tokens == 1
        await served.idle()


async def test_cancelling_a_streamed_run_before_its_first_token_stops_the_call() -> None:
    async with sdk({"text": "late", "delay_ms": 1}) as (served, config):
        run = Runner.run_streamed(Agent(name="Explorer"), "Go on.", run_config=config)
        await served.calls(1)
        run.cancel()
        async for _ in run.stream_events():
            pass
        receipt = await served.stopped()
        assert (receipt.accepted, receipt.authoritative, receipt.tokens) == (True, True, 0)
        await served.idle()


async def test_cancelling_after_the_turn_lets_the_answer_end() -> None:
    async with sdk({"text": "one two three"}) as (served, config):
        run = Runner.run_streamed(Agent(name="Explorer"), "Go on.", run_config=config)
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type.endswith("text.delta"):
                run.cancel(mode="after_turn")
        assert run.final_output == "one two three"
        assert served.agent.receipts == ()


async def test_t27_a_run_left_by_break_or_a_timeout_is_stopped_with_its_agent() -> None:
    async with sdk(ENDLESS) as (served, config):
        run = Runner.run_streamed(Agent(name="Explorer"), "Go on.", run_config=config)
        events = run.stream_events()
        async for event in events:
            if event.type == "raw_response_event" and event.data.type.endswith("text.delta"):
                break
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.01)
        report = await served.agent.cancel("nobody reads the run")
        (receipt,) = report.receipts
        assert (receipt.accepted, receipt.authoritative) == (True, True)
        await served.idle()


async def test_cancelling_the_task_of_a_whole_run_stops_the_call() -> None:
    async with sdk(ENDLESS) as (served, config):
        async with anyio.create_task_group() as tasks:
            run = Runner.run
            tasks.start_soon(lambda: run(Agent(name="Explorer"), "Go on.", run_config=config))
            await served.calls(1)
            tasks.cancel_scope.cancel()
        receipt = await served.stopped()
        assert (receipt.accepted, receipt.authoritative) == (True, True)


# --- retries ------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_t52_a_retry_of_the_runner_takes_the_running_call_over(streamed: bool) -> None:
    again = ModelSettings(
        retry=ModelRetrySettings(max_retries=1, policy=retry_policies.provider_suggested())
    )
    agent = Agent(name="Explorer", model_settings=again)
    late = {"text": ["a", "b"], "delay_ms": 1}
    async with sdk(late, timeout=0.2, max_retries=0) as (served, config):
        outputs: list[Any] = []

        async def run() -> None:
            if streamed:
                result = Runner.run_streamed(agent, "Go on.", run_config=config)
                async for _ in result.stream_events():
                    pass
                outputs.append(result.final_output)
            else:
                whole = await Runner.run(agent, "Go on.", run_config=config)
                outputs.append(whole.final_output)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await served.calls(1)
            await served.given_up()
            served.engine.let(2)
        assert outputs == ["ab"]
        assert len(served.engine.calls) == 1


async def timed_out(served: Embedded, config: RunConfig) -> openai.APITimeoutError:
    agent = Agent(name="Explorer")
    with pytest.raises(openai.APITimeoutError) as raised:
        await Runner.run(agent, "Go on.", run_config=config)
    assert len(served.engine.calls) == 1
    return raised.value


async def test_a_call_that_goes_on_for_its_retry_may_be_made_again() -> None:
    async with sdk(ENDLESS, timeout=0.02, max_retries=0) as (served, config):
        error = await timed_out(served, config)
        model = config.model_provider.get_model(None)
        advice = model.get_retry_advice(ModelRetryAdviceRequest(error, attempt=1, stream=False))
        assert advice is not None
        assert (advice.suggested, advice.replay_safety) == (True, "safe")


async def test_a_call_that_may_still_run_elsewhere_is_not_to_be_made_again() -> None:
    async with sdk(ENDLESS, timeout=0.02, max_retries=0) as (served, config):
        error = await timed_out(served, config)
        other = NnrpProvider(served.agent, MODEL).get_model(None)
        advice = other.get_retry_advice(ModelRetryAdviceRequest(error, attempt=1, stream=False))
        assert advice is not None
        assert (advice.suggested, advice.replay_safety) == (False, "unsafe")
        assert "may still run" in (advice.reason or "")


async def test_of_a_call_that_was_stopped_the_sdk_decides_itself() -> None:
    at_once = EmbedSettings(retry_seconds=0)
    async with sdk(ENDLESS, settings=at_once, timeout=0.02, max_retries=0) as (served, config):
        error = await timed_out(served, config)
        model = config.model_provider.get_model(None)
        advice = model.get_retry_advice(ModelRetryAdviceRequest(error, attempt=1, stream=False))
        assert advice is not None
        assert (advice.suggested, advice.replay_safety) == (True, None)


# --- models -------------------------------------------------------------------------------------


async def test_a_model_must_be_named_where_there_are_several() -> None:
    async with embedded() as served:
        provider = NnrpProvider(served.agent)
        model = provider.get_model("example-model")
        assert isinstance(model, NnrpModel)
        assert model.model == "example-model"
        with pytest.raises(UserError, match="the endpoints have: example-model, backend-error"):
            provider.get_model(None)
        await provider.aclose()
