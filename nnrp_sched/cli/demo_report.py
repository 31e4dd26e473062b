"""What the demo's program came to: for programs as one object, for people as the last lines."""

import statistics
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from nnrp_sched.cli.demo_story import QUESTION, Story
from nnrp_sched.cli.table import table
from nnrp_sched_orchestrator.records import Receipt

_COLUMNS: Final = (
    "stream_id",
    "state",
    "accepted",
    "authoritative",
    "tokens",
    "latency_ms",
    "reason",
)
_WIDTH: Final = 100


class Saved(Struct, frozen=True):
    """What was not made because nobody wanted it any more: upper bounds."""

    tokens_at_most: int
    engine_seconds_at_most: float
    """The engine's time for them, at the speed of the calls that were cut."""
    seconds_per_token: float
    """That speed: what one call took for a token, beside the others."""


class OverBudget(Struct, frozen=True):
    """The agent that had too little."""

    agent: str
    allowed: float
    tokens: int


class DemoReport(Struct, frozen=True):
    """What `--json` prints."""

    model: str
    vllm: str | None
    binding: str | None
    patched: list[dict[str, Any]]
    sessions: int
    agents: int
    operations: int
    """Model calls."""
    tool_calls: int
    tokens: int
    """Output tokens of all model calls."""
    seconds: float
    reply: str
    """The answer that won the race."""
    first_event_ms: float
    """From that call's beginning to its first event."""
    answers: dict[str, str]
    """What the explorers said, by agent."""
    events: dict[str, int]
    over_budget: OverBudget | None
    cancelled: tuple[Receipt, ...]
    """Of the cone that was cancelled."""
    losers: tuple[Receipt, ...]
    """Of the race."""
    receipts: tuple[Receipt, ...]
    """Of every stream that did not complete."""
    left: int | None
    """Operations of the program that the server has afterwards; None when it does not say."""
    saved: Saved


def report_of(
    story: Story, server: dict[str, Any], *, sessions: int, left: int | None, seconds: float
) -> DemoReport:
    """All of it, once the program has ended; `server` is what the server says of itself."""
    spent, exceeded, race = story.program.spent, story.over_budget, story.raced
    times = None if race is None else race.result.timings
    first = None if times is None else times.first_event
    return DemoReport(
        model=server["model"],
        vllm=server["vllm"],
        binding=server["binding"],
        patched=server["patched"],
        sessions=sessions,
        agents=len(story.agents),
        operations=spent.model_calls,
        tool_calls=story.tool_calls,
        tokens=spent.tokens,
        seconds=round(seconds, 1),
        reply="" if race is None else race.result.text,
        first_event_ms=0.0 if times is None or first is None else round(first - times.created, 1),
        answers=story.answers,
        events=dict(story.events),
        over_budget=None
        if exceeded is None
        else OverBudget(exceeded.owner, exceeded.allowed, exceeded.spent[exceeded.owner].tokens),
        cancelled=story.cancelled,
        losers=() if race is None else race.report.losers,
        receipts=story.receipts,
        left=left,
        saved=_saved(story),
    )


def _saved(story: Story) -> Saved:
    reports = story.saved
    speeds = [each.seconds_per_token for each in reports if each.seconds_per_token is not None]
    return Saved(
        sum(each.tokens_saved_at_most for each in reports),
        round(sum(each.engine_seconds_saved_at_most or 0.0 for each in reports), 1),
        round(statistics.mean(speeds), 4) if speeds else 0.0,
    )


def conclusion(report: DemoReport) -> str:
    """The last lines for people."""
    return "\n".join(_conclusion(report))


def _conclusion(report: DemoReport) -> Iterator[str]:
    yield ""
    for agent, answer in report.answers.items():
        yield textwrap.shorten(f"{agent} says: {answer}", _WIDTH, placeholder=" …")
    yield textwrap.shorten(f"{QUESTION} {report.reply}", _WIDTH, placeholder=" …")
    yield ""
    yield table(_COLUMNS, [[getattr(each, name) for name in _COLUMNS] for each in report.receipts])
    yield ""
    if report.left is not None:
        yield f"The server has {report.left or 'no'} operations of this program left."
    proven = sum(each.authoritative for each in report.receipts)
    saved = report.saved
    speed = f"{saved.seconds_per_token * 1000:.0f} ms a token"
    yield (
        f"{report.operations} model calls and {report.tool_calls} tool calls of {report.agents} "
        f"agents over {report.sessions} sessions: {report.tokens} tokens in {report.seconds:.0f} s."
    )
    yield (
        f"Cancelling saved at most {saved.tokens_at_most} tokens: "
        f"{saved.engine_seconds_at_most:.0f} s of engine time at {speed}. "
        f"{proven} of {len(report.receipts)} receipts are authoritative."
    )
