"""A clerk of LangChain, whose model calls go over NNRP."""

from typing import Any

from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from examples.serving import run
from nnrp_sched_orchestrator.embed.langchain import chat_openai
from nnrp_sched_orchestrator.orchestrator import Orchestrator


class Item(BaseModel):
    """What is asked for."""

    name: str = Field(max_length=12)


@tool(args_schema=Item)
def price(name: str) -> str:
    """The price of an item."""
    return f"{name} costs {len(name)} coins."


async def story(endpoint: str) -> None:
    """A tool call out of a stream, its answer, and a stream that is left."""
    async with (
        Orchestrator.connect(endpoint) as orchestrator,
        orchestrator.program("shop") as shop,
    ):
        model: Any = chat_openai(shop, temperature=0, max_tokens=60)
        # The embedded model is too small to choose by itself.
        clerk = model.bind_tools([price], tool_choice="any", strict=True)
        messages: list[Any] = [HumanMessage("What does a lamp cost?")]
        said: Any = None
        async for piece in clerk.astream(messages):
            assert isinstance(piece, AIMessageChunk)
            said = piece if said is None else said + piece
        messages.append(said)
        for call in said.tool_calls:
            result = await price.ainvoke(call)
            print(f"{call['name']}({call['args']}): {result.content}")
            messages.append(result)
        answer = await model.ainvoke(messages)
        print("The clerk says:", " ".join(str(answer.content).split()))

        print("And talks on:", end=" ")
        pieces = 0
        talk = model.bind(max_tokens=1500)
        async for piece in talk.astream("Tell a very long story about a lamp."):
            print(piece.content, end="", flush=True)
            pieces += 1
            if pieces == 12:
                break
        await model.root_async_client.close()
    (receipt,) = shop.receipts
    print(
        f" …\nLeft by break: stopped while {receipt.state}, confirmed by the scheduler: "
        f"{receipt.authoritative}, {receipt.tokens} of 1500 tokens made"
    )


if __name__ == "__main__":
    run(story, __doc__)
