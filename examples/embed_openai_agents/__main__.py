"""A librarian of the OpenAI Agents SDK, whose model calls go over NNRP."""

from pathlib import Path

from agents import Agent, ModelSettings, RunConfig, Runner, function_tool

from examples.serving import run
from nnrp_sched_orchestrator.embed.openai_agents import NnrpProvider
from nnrp_sched_orchestrator.orchestrator import Orchestrator

SHELF = Path(__file__).parents[1]


@function_tool
def books() -> str:
    """What stands on the shelf: the examples beside this one."""
    return ", ".join(sorted(path.parent.name for path in SHELF.glob("*/README.md")))


async def story(endpoint: str) -> None:
    """A run that calls a tool, and a streamed one that is cancelled."""
    async with (
        Orchestrator.connect(endpoint) as orchestrator,
        orchestrator.program("library") as program,
        program.agent("librarian") as ours,
    ):
        provider = NnrpProvider(ours)
        config = RunConfig(model_provider=provider, tracing_disabled=True)
        librarian = Agent(
            name="Librarian",
            instructions="Look at the shelf.",
            tools=[books],
            # The embedded model is too small to choose by itself.
            model_settings=ModelSettings(tool_choice="required", temperature=0, max_tokens=100),
            tool_use_behavior="stop_on_first_tool",
        )
        found = await Runner.run(librarian, "Which books are there?", run_config=config)
        print(f"The librarian looked: {found.final_output}")

        teller = Agent(name="Teller", model_settings=ModelSettings(max_tokens=1500))
        telling = Runner.run_streamed(
            teller, "Tell a very long story about an old book.", run_config=config
        )
        print("The teller begins:", end=" ")
        pieces = 0
        async for event in telling.stream_events():
            if event.type != "raw_response_event":
                continue
            if event.data.type != "response.output_text.delta":
                continue
            print(event.data.delta, end="", flush=True)
            pieces += 1
            if pieces == 12:
                telling.cancel()
        await provider.aclose()
    (receipt,) = ours.receipts
    print(
        f" …\nRunResultStreaming.cancel(): stopped while {receipt.state}, confirmed by the "
        f"scheduler: {receipt.authoritative}, {receipt.tokens} of 1500 tokens made"
    )
    print(f"Both runs were paid by {ours.path}: {ours.spent.tokens} tokens.")


if __name__ == "__main__":
    run(story, __doc__)
