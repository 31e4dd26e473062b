"""A newsroom that writes with the plain `openai` client, over NNRP."""

import asyncio

import openai
from openai import AsyncOpenAI

from examples.serving import run
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.embed.openai_client import async_openai
from nnrp_sched_orchestrator.orchestrator import Orchestrator

TOPICS = ("the harbour", "the market", "the school", "the weather")


async def story(endpoint: str) -> None:
    """Four writers at once, an editor who has read enough, and one who runs out of patience."""
    async with (
        Orchestrator.connect(endpoint) as orchestrator,
        orchestrator.program("newsroom") as newsroom,
        async_openai(newsroom) as client,
    ):
        model = (await client.models.list()).data[0].id
        print(f"{model} writes four headlines at once, on two sessions of one connection:")
        async with asyncio.TaskGroup() as writers:
            for topic in TOPICS:
                writers.create_task(headline(client, model, topic))
        await read_the_beginning(client, model, newsroom)
        await lose_patience(client, model, newsroom)
        spent = newsroom.spent
        print(f"Spent: {spent.tokens} tokens in {spent.model_calls} calls.")


async def headline(client: AsyncOpenAI, model: str, topic: str) -> None:
    """One whole answer."""
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Write a headline about {topic}."}],
        max_tokens=16,
        temperature=0,
    )
    said = " ".join((answer.choices[0].message.content or "").split())
    print(f"  {topic}: {said}")


async def read_the_beginning(client: AsyncOpenAI, model: str, newsroom: Agent) -> None:
    """A stream that is left after a few words: the engine stops, and says so."""
    print("The editor reads the beginning of a long story:", end=" ")
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Tell a very long story about a lighthouse."}],
        max_tokens=1500,
        stream=True,
    )
    pieces = 0
    async with stream:
        async for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
            pieces += 1
            if pieces == 12:
                break
    receipt = newsroom.receipts[-1]
    print(
        f" …\n  stopped while {receipt.state}, confirmed by the scheduler: "
        f"{receipt.authoritative}, {receipt.tokens} of 1500 tokens made, "
        f"{receipt.latency_ms:.0f} ms"
    )


async def lose_patience(client: AsyncOpenAI, model: str, newsroom: Agent) -> None:
    """A client that times out and tries again: its retries take over the one call."""
    calls = newsroom.spent.model_calls
    hasty = client.with_options(timeout=0.2, max_retries=2)
    try:
        await hasty.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell a very long story about a ship."}],
            max_tokens=1500,
            extra_body={"ignore_eos": True},
        )
    except openai.APITimeoutError:
        made = newsroom.spent.model_calls - calls
        print(f"A hasty client tried three times in vain; the engine had {made} call of it.")


if __name__ == "__main__":
    run(story, __doc__)
