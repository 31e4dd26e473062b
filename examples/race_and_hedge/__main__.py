"""Several calls for one answer: whoever is not needed any more is stopped, and that is counted."""

import textwrap
from pathlib import Path
from typing import Any, Final

from examples.serving import run
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.fanout import best_of, gather, hedge, map, race
from nnrp_sched_orchestrator.fanout_report import FanOutReport
from nnrp_sched_orchestrator.first_event_times import FirstEventTimes
from nnrp_sched_orchestrator.orchestrator import Orchestrator
from nnrp_sched_orchestrator.records import ModelResult

CITIES: Final = ("France", "Italy", "Spain", "Japan")
README: Final = (Path(__file__).parents[2] / "README.md").read_text()
MOST: Final = 120
"""Output tokens that each call may make."""


async def story(endpoint: str) -> None:
    """One question after another, each asked several times at once."""
    async with (
        Orchestrator.connect(endpoint, sessions=2) as orchestrator,
        orchestrator.program("quiz") as agent,
    ):
        times = FirstEventTimes(enough=len(CITIES))
        reports = [
            await ask_all(agent, times),
            await ask_in_three_ways(agent),
            await ask_again_if_slow(agent, times),
            await ask_until_good(agent),
            await ask_until_late(agent),
        ]
        saved = sum(report.tokens_saved_at_most for report in reports)
        seconds = sum(report.engine_seconds_saved_at_most or 0 for report in reports)
        print(
            f"Spent {agent.spent.tokens} tokens in {agent.spent.model_calls} calls; cancelling "
            f"saved at most {saved} tokens, {seconds:.1f} s of engine time."
        )


async def ask_all(agent: Agent, times: FirstEventTimes) -> FanOutReport:
    """`map`: an answer for each item, two calls at a time."""
    done = await map(agent, lambda land: body(f"What is the capital of {land}?"), CITIES, at_once=2)
    for land, result in zip(CITIES, done.result, strict=True):
        times.observe(result.timings)
        print(f"map: {land}: {line(result)}")
    return done.report


async def ask_in_three_ways(agent: Agent) -> FanOutReport:
    """`race`: the first whole answer wins."""
    ways = ["What is the capital of France?", *(long(f"what is {it}?") for it in ("Paris", "Rome"))]
    won = await race(agent, [body(way) for way in ways])
    print(f"race: {line(won.result)}")
    tell(won.report)
    return won.report


async def ask_again_if_slow(agent: Agent, times: FirstEventTimes) -> FanOutReport:
    """`hedge`: a second copy when the first has no event by the time by which half of those had.

    The long text makes the engine slow to begin.
    """
    question = f"{README[:3000]}\n\nWhat is the capital of Norway?"
    won = await hedge(agent, body(question), after=times, quantile=0.5, copies=2)
    print(f"hedge: {line(won.result)} ({won.report.started} started)")
    tell(won.report)
    return won.report


async def ask_until_good(agent: Agent) -> FanOutReport:
    """`best_of`: samples with a score; one that is good enough ends the others."""
    samples = [
        body("What is the capital of France?", temperature=0.8, seed=seed) for seed in range(4)
    ]
    won = await best_of(agent, samples, score=shortness, enough=0.6)
    print(f"best_of: {line(won.result.result)} (score {won.result.score:.2f})")
    tell(won.report)
    return won.report


async def ask_until_late(agent: Agent) -> FanOutReport:
    """`gather`: what there is when the time is over, parts included."""
    asked = [body("What is the capital of France?"), body(long("what is the sea?"), max_tokens=900)]
    had = await gather(agent, asked, seconds=2.5)
    for result in had.result:
        print(f"gather: {result.status}, {len(result.text)} characters: {line(result)}")
    tell(had.report)
    return had.report


def body(text: str, **members: Any) -> dict[str, Any]:
    """A chat body."""
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": MOST, "temperature": 0}
    return {**chat, **members}


def long(text: str) -> str:
    """What makes an answer long."""
    return f"Give a long answer: {text}"


def shortness(result: ModelResult) -> float:
    """The fewer words, the better."""
    return 1 - len(result.text.split()) / MOST


def tell(report: FanOutReport) -> None:
    """Who was stopped, and what that saved."""
    for receipt in report.losers:
        print(
            f"  stopped {receipt.stream_id} while {receipt.state} after {receipt.tokens} tokens, "
            f"confirmed: {receipt.authoritative}"
        )
    if report.losers:
        print(f"  saved at most {report.tokens_saved_at_most} tokens")


def line(result: ModelResult) -> str:
    """The beginning of an answer, in one line."""
    return textwrap.shorten(result.text, 80, placeholder=" …")


if __name__ == "__main__":
    run(story, __doc__)
