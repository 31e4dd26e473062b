"""A travel agency of pydantic-ai, whose model calls go over NNRP."""

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput

from examples.serving import run
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.embed.pydantic_ai import NnrpModel
from nnrp_sched_orchestrator.orchestrator import Orchestrator


class Trip(BaseModel):
    """Where to go, and for how long."""

    city: str = Field(max_length=12)
    days: int = Field(ge=1, le=9)


async def story(endpoint: str) -> None:
    """A typed answer, and a streamed one that is cancelled."""
    async with (
        Orchestrator.connect(endpoint) as orchestrator,
        orchestrator.program("agency", budget=Budget(tokens=2000)) as agency,
    ):
        model = NnrpModel(agency, settings={"temperature": 0, "max_tokens": 60})
        planner = Agent(model, output_type=NativeOutput(Trip))
        planned = await planner.run("Plan a short trip to Paris.")
        print(f"Planned: {planned.output!r}")

        guide = Agent(model, model_settings={"max_tokens": 1500})
        print("The guide begins:", end=" ")
        async with guide.run_stream("Tell a very long story about Paris.") as telling:
            pieces = 0
            async for text in telling.stream_text(delta=True, debounce_by=None):
                print(text, end="", flush=True)
                pieces += 1
                if pieces == 12:
                    await telling.cancel()
            kept = telling.response
        (receipt,) = agency.receipts
        print(
            f" …\ncancel(): the response is {kept.state}; stopped while {receipt.state}, "
            f"confirmed by the scheduler: {receipt.authoritative}, "
            f"{receipt.tokens} of 1500 tokens made"
        )
        print(f"Left of the agency's budget: {agency.tokens_left} tokens.")
        await model.aclose()


if __name__ == "__main__":
    run(story, __doc__)
