"""Several streams for one purpose: map, race, hedge, best_of, gather.

```python
won = await race(agent, ["Say it in German.", "Say it in French."], check=is_short)
print(won.result.text, won.report.tokens_saved_at_most)
```

What to start is a chat body, or just what a user says, or a function that starts a stream of the
agent it is given (`entrants.Entrant`). Each function returns a result and a report: who won, the
receipts of those that were cancelled, and what cancelling them saved at most. Nothing outlives the
call: whatever ends it, streams that have not ended are cancelled and their receipts waited for.

An agent's streams, and so these, are bounded by its budget (`fan_out`, `model_calls`, `tokens`) and
its settings; what does not allow one more is raised, and ends the others.
"""

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, Literal, TypeVar

import anyio
from msgspec import Struct

from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.entrants import (
    Branch,
    Entrant,
    Entrants,
    ResultT,
    Runner,
    branch_of,
)
from nnrp_sched_orchestrator.fanout_report import FanOut, NoWinner
from nnrp_sched_orchestrator.first_event_times import FirstEventTimes

ItemT = TypeVar("ItemT")

Check = Callable[[ResultT], bool | Awaitable[bool]]
"""Whether a result counts."""

Score = Callable[[ResultT], float | Awaitable[float | None] | None]
"""How good a result is, more is better; None for one that does not count."""


class Scored(Struct, Generic[ResultT], frozen=True):
    """The best of several results."""

    result: ResultT
    score: float


async def map(
    agent: Agent,
    make: Callable[[ItemT], Entrant[ResultT]],
    items: Iterable[ItemT],
    *,
    at_once: int = 8,
    order: Literal["given", "completed"] = "given",
    failures: Literal["raise", "keep"] = "raise",
) -> FanOut[tuple[ResultT, ...]]:
    """A stream for each item, at most `at_once` at a time; the results in one order or the other.

    `items` are taken as they are needed. The first failure is raised and ends the others, or with
    `keep` stands among the results, as does then what somebody else has cancelled.
    """
    branches = (branch_of(make(item)) for item in items)
    found: list[Runner[ResultT]] = []
    async with Entrants[ResultT](agent) as field:
        _start(field, branches, _at_once(at_once))
        while len(field):
            runner = await field.next()
            if failures == "raise" and not runner.succeeded:
                raise runner.error or NoWinner("map", field.report(()), runner.receipt)
            found.append(runner)
            _start(field, branches, 1)
    if order == "given":
        found.sort(key=lambda runner: runner.index)
    won = tuple(runner.stream.id for runner in found if runner.succeeded)
    return FanOut(tuple(runner.result for runner in found), field.report(won))


async def race(
    agent: Agent, branches: Sequence[Entrant[ResultT]], *, check: Check[ResultT] | None = None
) -> FanOut[ResultT]:
    """Start all; the first whole result that passes the check wins, and the others are cancelled.

    Without a check every whole result counts. Raises `NoWinner` when none does.
    """
    winner: Runner[ResultT] | None = None
    async with Entrants[ResultT](agent) as field:
        _start(field, iter([branch_of(each) for each in branches]), len(branches))
        while len(field) and winner is None:
            runner = await field.next()
            if runner.succeeded and (check is None or await _of(check(runner.result))):
                winner = runner
    if winner is None:
        raise NoWinner("race", field.report(()))
    return FanOut(winner.result, field.report((winner.stream.id,)))


async def hedge(
    agent: Agent,
    branch: Entrant[ResultT],
    *,
    after: float | FirstEventTimes,
    quantile: float = 0.95,
    otherwise: float = 1.0,
    copies: int = 2,
) -> FanOut[ResultT]:
    """Start a second copy when the first has no event in time; the first with an event goes on.

    In time is `after` seconds, or what this share of the observed calls took; `otherwise` seconds
    as long as too few were observed. Further copies follow at the same distance. The copy that goes
    on is observed in turn; the others are cancelled as soon as it has its first event. A copy that
    fails before that is one less. Raises `NoWinner` when none comes to a result.

    A body with an idempotency key of its own must not be hedged: its copies are one operation.
    """
    known = after.quantile(quantile) if isinstance(after, FirstEventTimes) else after
    delay = otherwise if known is None else known
    supply = iter([branch_of(branch)] * _positive(copies, "copies"))
    leader: Runner[ResultT] | None = None
    async with Entrants[ResultT](agent) as field:
        _start(field, supply, 1, tell_first_event=True)
        while len(field) and leader is None:
            runner: Runner[ResultT] | None = None
            with anyio.move_on_after(delay if field.started < copies else math.inf):
                runner = await field.next()
            if runner is None:
                _start(field, supply, 1, tell_first_event=True)
            elif runner.heard or runner.succeeded:
                leader = runner
        if leader is not None:
            await field.drop(f"{leader.stream.id} answers", keep=leader)
            while not leader.over:
                await field.next()
    if leader is None or not leader.succeeded:
        raise NoWinner("hedge", field.report(()))
    if isinstance(after, FirstEventTimes):
        after.observe(leader.result.timings)
    return FanOut(leader.result, field.report((leader.stream.id,)))


async def best_of(
    agent: Agent,
    branches: Sequence[Entrant[ResultT]],
    *,
    score: Score[ResultT],
    enough: float = math.inf,
    at_once: int = 8,
) -> FanOut[Scored[ResultT]]:
    """The whole result with the best score; one that scores `enough` ends the others.

    For several samples of one body, give it several times. Of equal scores the earlier started one
    wins. Raises `NoWinner` when no result has a score.
    """
    supply = iter([branch_of(each) for each in branches])
    best: Scored[ResultT] | None = None
    winner: Runner[ResultT] | None = None
    async with Entrants[ResultT](agent) as field:
        _start(field, supply, _at_once(at_once))
        while len(field) and (best is None or best.score < enough):
            runner = await field.next()
            value = await _of(score(runner.result)) if runner.succeeded else None
            if value is None or math.isnan(value):
                pass
            elif best is None or winner is None or _beats(value, runner, best.score, winner):
                best, winner = Scored(runner.result, value), runner
            _start(field, supply, 1)
    if best is None or winner is None:
        raise NoWinner("best_of", field.report(()))
    return FanOut(best, field.report((winner.stream.id,)))


async def gather(
    agent: Agent, branches: Sequence[Entrant[ResultT]], *, seconds: float
) -> FanOut[tuple[ResultT, ...]]:
    """Start all; what each has when `seconds` are over, or all have ended, in the order given.

    What has not ended by then is cancelled, and its result is what there was (`status` tells). One
    that fails stands among the results, and its error in the report.
    """
    found: list[Runner[ResultT]] = []
    async with Entrants[ResultT](agent) as field:
        found += _start(field, iter([branch_of(each) for each in branches]), len(branches))
        with anyio.move_on_after(seconds):
            while len(field):
                await field.next()
    won = tuple(runner.stream.id for runner in found if runner.succeeded)
    return FanOut(tuple(runner.result for runner in found), field.report(won))


def _start(
    field: Entrants[ResultT],
    supply: Iterator[Branch[ResultT]],
    count: int,
    *,
    tell_first_event: bool = False,
) -> list[Runner[ResultT]]:
    """Start so many more, as far as there are."""
    return [
        field.start(branch, tell_first_event=tell_first_event) for branch in islice(supply, count)
    ]


def _beats(score: float, runner: Runner[ResultT], best: float, winner: Runner[ResultT]) -> bool:
    return score > best or (score == best and runner.index < winner.index)


async def _of(value: Any) -> Any:
    """What a function of the caller's returned, awaited if it is to be."""
    return await value if inspect.isawaitable(value) else value


def _at_once(count: int) -> int:
    return _positive(count, "at_once")


def _positive(count: int, name: str) -> int:
    if count < 1:
        raise ValueError(f"{name}={count!r} lets nothing run")
    return count
