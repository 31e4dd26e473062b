"""Queue delay as reported against the scheduler's own timestamps, and how good the estimates are.

    python -m bench.queue_delay [--model tiny|smollm2] [--requests N] [--json]

A patched vLLM with 8 slots gets more requests than it can serve, of very different lengths, and
`queue.snapshot` is asked every 20 ms by the server's own path. What each snapshot says of a request
(delay so far, estimated wait) is compared with what vLLM's own QUEUED and SCHEDULED timestamps say
of that moment once the request has ended. Meanwhile one client polls the engine once and never
again, and one reader of `queue.watch` reads nothing after its first snapshot.

The delay's error counts every report: of requests that wait, and of those that just began to run.
`visible after` is from the call of vLLM until the first snapshot that has the request in line, of
requests that wait 100 ms or longer. The estimate's error is the estimate less the real rest of the
wait, over all snapshots; relative to the real rest where that is longer than a step.
"""

import argparse
import asyncio
import json
import random
import statistics
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import anyio

from bench.support.live_engine import Model, generated, live_engine, vllm_version
from bench.support.quantiles import quantile
from nnrp_sched.client.connect import over_carrier
from nnrp_sched.engine.records import QueueSnapshot
from nnrp_sched.server import Server
from nnrp_sched.transport import background_tasks, memory_pair
from nnrp_sched_patches.channel import call_engine
from nnrp_sched_patches.frontend import now_ms
from nnrp_sched_patches.launch import Serving

SLOTS: Final = 8
POLICIES: Final = ("fcfs", "priority")
EVERY_S: Final = 0.02
OVERLOAD: Final = 1.15
"""Offered tokens for each that the engine makes."""
DEEPEST: Final = 40
"""Arrivals pause while so many wait, so that the line is long and not endless."""
POSITIONS: Final = ((0, 0), (1, 3), (4, 7), (8, 15), (16, DEEPEST))
SPREADS: Final = (
    "between snapshots",
    "step",
    "delay reported live, error",
    "delay at the end, error",
    "visible after",
    "wait",
)
_POLL: Final = {"since": 0, "max": 1, "wait_s": 60.0}


@dataclass
class Observed:
    """One run."""

    snapshots: list[QueueSnapshot] = field(default_factory=list[QueueSnapshot])
    called: dict[str, float] = field(default_factory=dict[str, float])
    truth: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """By request vLLM's own times of being queued and first scheduled, in ms."""
    final: dict[str, float] = field(default_factory=dict[str, float])
    """By request the delay that the ledger ends with."""
    steps: list[float] = field(default_factory=list[float])


def lengths(count: int, source: random.Random) -> list[int]:
    """Numbers of tokens as chats have them: most are short, some ten times as long."""
    return [min(300, max(4, round(source.lognormvariate(3.4, 0.7)))) for _ in range(count)]


@asynccontextmanager
async def idle_consumers(serving: Serving) -> AsyncGenerator[None, None]:
    """A client of the engine's transitions and a reader of the queue, both of which stop."""
    llm = serving.engine.async_llm
    await call_engine(llm, "nnrp_poll", {**_POLL, "client": 99}, wait_s=5)
    async with background_tasks() as tasks:
        server = Server(serving.engine)
        ours, theirs = memory_pair()
        tasks.start_soon(server.serve_carrier, theirs)
        async with (
            over_carrier(ours) as connection,
            connection.session() as session,
            aclosing(session.watch_queue(per_second=50)) as watching,
        ):
            await anext(watching)
            yield
        await server.drain(0)


async def observe(serving: Serving, wanted: list[int], source: random.Random) -> Observed:
    """Serve requests of `wanted` lengths and write down what is reported of them."""
    seen, llm = Observed(), serving.engine.async_llm
    warm = now_ms()
    async with anyio.create_task_group() as tasks:
        for number in range(SLOTS):
            tasks.start_soon(lambda name: generated(llm, name, tokens=64), f"rate-{number}")
    token_ms = (now_ms() - warm) / (64 * SLOTS)
    mean = statistics.fmean(wanted)
    room = anyio.Semaphore(SLOTS + DEEPEST)

    async def serve(name: str, tokens: int) -> None:
        seen.called[name] = now_ms()
        done = await generated(llm, name, tokens=tokens, priority=source.randrange(4))
        room.release()
        own = done.metrics
        seen.truth[name] = own.queued_ts * 1e3, own.scheduled_ts * 1e3
        entry = serving.engine.ledger.find(name)
        assert entry is not None
        seen.final[name] = entry.queue_delay(now_ms())

    async def watch() -> None:
        while True:
            seen.snapshots.append(await serving.engine.queue())
            depths = await call_engine(llm, "nnrp_queue", {}, wait_s=5)
            if depths["step_ns"] is not None:
                seen.steps.append(depths["step_ns"] / 1e6)
            await anyio.sleep(EVERY_S)

    async with idle_consumers(serving), anyio.create_task_group() as watcher:
        watcher.start_soon(watch)
        async with anyio.create_task_group() as tasks:
            for number, tokens in enumerate(wanted):
                await room.acquire()
                tasks.start_soon(serve, f"request-{number}", tokens)
                await anyio.sleep(source.expovariate(OVERLOAD / (mean * token_ms / 1e3)))
        watcher.cancel_scope.cancel()
    return seen


def spread(values: list[float], *parts: float) -> dict[str, float]:
    """Count, quantiles and maximum."""
    told = {f"p{part * 100:g}": round(quantile(values, part), 3) for part in parts}
    return {"n": len(values), **told, "max": round(max(values, default=float("nan")), 3)}


def report(seen: Observed) -> dict[str, Any]:
    """The figures of a run, in ms but for the relative ones."""
    waiting: list[float] = []
    estimates: list[tuple[int, float, float]] = []
    first: dict[str, float] = {}
    for snapshot in seen.snapshots:
        for told in snapshot.operations:
            if told.id not in seen.truth or told.timings.queued is None:
                continue
            queued, scheduled = seen.truth[told.id]
            now = snapshot.taken_ms
            if told.timings.first_token is None:
                # From the first token on the ledger has vLLM's own times, and no error to count.
                waiting.append(abs(told.queue_delay_ms - (min(now, scheduled) - queued)))
            if told.state == "waiting":
                first.setdefault(told.id, now)
                if told.estimate_ms is not None and told.position is not None and now < scheduled:
                    estimates.append((told.position, told.estimate_ms, scheduled - now))
    visible = [
        first.get(name, float("inf")) - called
        for name, called in seen.called.items()
        if seen.truth[name][1] - called >= 100
    ]
    final = [abs(seen.final[name] - (end - start)) for name, (start, end) in seen.truth.items()]
    step = statistics.median(seen.steps)
    return {
        "requests": len(seen.truth),
        "snapshots": len(seen.snapshots),
        "between snapshots": spread(
            [b.taken_ms - a.taken_ms for a, b in pairwise(seen.snapshots)], 0.5, 0.99
        ),
        "step": spread(seen.steps, 0.5, 0.99),
        "delay reported live, error": spread(waiting, 0.5, 0.99),
        "delay at the end, error": spread(final, 0.5, 0.99),
        "visible after": spread(visible, 0.5, 0.99),
        "wait": spread([end - start for start, end in seen.truth.values()], 0.5, 0.9),
        "estimate": {
            f"{low}" if low == high else f"{low}-{high}": estimate_error(
                [(est, real) for at, est, real in estimates if low <= at <= high], step
            )
            for low, high in (*POSITIONS, (0, DEEPEST))
        },
    }


def estimate_error(pairs: list[tuple[float, float]], step: float) -> dict[str, float]:
    """How far estimates were from what came."""
    absolute = [abs(estimate - real) for estimate, real in pairs]
    relative = [abs(estimate - real) / real for estimate, real in pairs if real > step]
    return {
        "n": len(pairs),
        "bias ms": round(quantile([estimate - real for estimate, real in pairs], 0.5), 1),
        "p50 ms": round(quantile(absolute, 0.5), 1),
        "p90 ms": round(quantile(absolute, 0.9), 1),
        "p50": round(quantile(relative, 0.5), 3),
        "p90": round(quantile(relative, 0.9), 3),
    }


async def measure(model: Model, policy: str, requests: int, seed: int) -> dict[str, Any]:
    """The figures under one scheduling policy."""
    source = random.Random(seed)
    async with live_engine(model, "--scheduling-policy", policy) as serving:
        return report(await observe(serving, lengths(requests, source), source))


def tell(policy: str, figures: dict[str, Any]) -> None:
    """Print the figures of one policy."""
    print(f"{policy}: {figures['requests']} requests, {figures['snapshots']} snapshots")
    for name in SPREADS:
        values: dict[str, float] = figures[name]
        listed = "  ".join(f"{key} {value:g}" for key, value in values.items())
        print(f"  {name:28} {listed}")
    print("  estimate, by place in line        n   bias ms    p50 ms    p90 ms   p50     p90")
    for place, error in figures["estimate"].items():
        shown = (error[key] for key in ("n", "bias ms", "p50 ms", "p90 ms", "p50", "p90"))
        count, bias, half, most, relative, worst = shown
        print(
            f"  {place:28} {count:6} {bias:9} {half:9} {most:9} {relative:6.0%}  {worst:6.0%}",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print a JSON object for each policy")
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="tiny")
    parser.add_argument("--requests", type=int, default=400, help="for each policy (400)")
    parser.add_argument("--seed", type=int, default=1, help="of lengths, arrivals, priorities (1)")
    arguments = parser.parse_args()
    if not arguments.json:
        print(f"vLLM {vllm_version()}, {arguments.model}, {SLOTS} slots; times in ms")
    for policy in POLICIES:
        figures = asyncio.run(measure(arguments.model, policy, arguments.requests, arguments.seed))
        if arguments.json:
            print(json.dumps({policy: figures}), flush=True)
        else:
            tell(policy, figures)


if __name__ == "__main__":
    main()
