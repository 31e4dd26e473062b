"""LangChain's `ChatOpenAI` on a program of ours."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from nnrp_sched_orchestrator.embed.langchain import chat_openai
from tests.support.embedding import SECONDS, Embedded, embedded
from tests.support.serving import MODEL

pytestmark = pytest.mark.anyio

ENDLESS = {"text": "x", "hold": True}
CALL = {
    "text": "Looking.",
    "tool_calls": [
        {"name": "grep", "arguments": '{"pattern": "needle"}', "id": "call_1"},
        {"name": "grep", "arguments": '{"pattern": "thread"}', "id": "call_2"},
    ],
}


@tool
def grep(pattern: str) -> str:
    """Look for a pattern."""
    return f"haystack.py:{len(pattern)}"


def bound(model: Any) -> Runnable[Any, AIMessage]:
    """The model with the tool."""
    with_tools: Runnable[Any, AIMessage] = model.bind_tools([grep])
    return with_tools


@asynccontextmanager
async def langchain(
    *turns: dict[str, Any], **options: Any
) -> AsyncGenerator[tuple[Embedded, ChatOpenAI]]:
    """An engine that answers so, and a chat model that leads to it."""
    async with embedded(turns=turns) as served:
        model = chat_openai(served.agent, MODEL, **options)
        yield served, model
        await model.root_async_client.close()


async def test_an_answer_with_its_token_counts() -> None:
    async with langchain({"text": "It is in line 7."}) as (served, model):
        answer = await model.ainvoke("Where is it?")
        assert answer.content == "It is in line 7."
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["output_tokens"] == served.agent.spent.tokens == 5


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_are_called_and_their_results_go_back(streamed: bool) -> None:
    async with langchain(CALL, {"text": "In line 6."}) as (served, model):
        with_tools = bound(model)
        messages: list[Any] = [HumanMessage("Where is it?")]
        if streamed:
            pieces = [piece async for piece in with_tools.astream(messages)]
            said: Any = pieces[0]
            for piece in pieces[1:]:
                assert isinstance(piece, AIMessageChunk)
                said = said + piece
        else:
            said = await with_tools.ainvoke(messages)
        assert said.content == "Looking."
        assert [call["args"] for call in said.tool_calls] == [
            {"pattern": "needle"},
            {"pattern": "thread"},
        ]
        messages.append(said)
        for call in said.tool_calls:
            result = await grep.ainvoke(call)
            assert isinstance(result, ToolMessage)
            messages.append(result)
        answer = await with_tools.ainvoke(messages)
        assert answer.content == "In line 6."
        roles = [message["role"] for message in served.engine.calls[1].body["messages"]]
        assert roles == ["user", "assistant", "tool", "tool"]
        assert served.agent.receipts == ()


async def test_closing_the_stream_of_a_chat_model_stops_the_call() -> None:
    async with langchain(ENDLESS) as (served, model):
        stream = cast(AsyncGenerator[AIMessageChunk], model.astream("Go on."))
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                assert piece.content == "x"
                break
        receipt = await served.stopped()
        assert (receipt.state, receipt.accepted, receipt.authoritative) == ("running", True, True)
        await served.idle()


@pytest.mark.parametrize("streamed", [False, True])
async def test_cancelling_the_task_stops_the_call(streamed: bool) -> None:
    async with langchain(ENDLESS) as (served, model):

        async def use() -> None:
            if streamed:
                async for _ in model.astream("Go on."):
                    pass
            else:
                await model.ainvoke("Go on.")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            await served.calls(1)
            tasks.cancel_scope.cancel()
        receipt = await served.stopped()
        assert (receipt.accepted, receipt.authoritative) == (True, True)
        await served.idle()


async def test_the_blocking_methods_work_in_threads_beside_the_loop() -> None:
    async with langchain({"text": "one"}, {"text": "two three"}) as (_, model):
        with anyio.fail_after(SECONDS):
            answer = await anyio.to_thread.run_sync(model.invoke, "Where is it?")
            assert answer.content == "one"
            pieces = await anyio.to_thread.run_sync(lambda: list(model.stream("And now?")))
            assert "".join(str(piece.content) for piece in pieces) == "two three"


async def test_a_blocking_method_in_the_loop_itself_says_what_to_do() -> None:
    async with langchain(max_retries=0) as (_, model):
        with pytest.raises(RuntimeError, match="use the async one, or call this in a thread"):
            model.invoke("Where is it?")
