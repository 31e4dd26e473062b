"""What the patch layer costs a real vLLM: output tokens/s with and without it, and its hooks' time.

    python -m bench.engine_overhead [--model tiny|smollm2] [--seconds N] [--json]

One engine; the layer is taken out of its processes and put in again between rounds, in pairs whose
order alternates, so that slow moments of the machine meet both alike. With the layer in, the
ledger is fed as in `nnrp-sched run`. The ratio is the geometric mean over pairs of tokens/s with
and without, with its 95 % confidence interval; so is that of the CPU time for each token of the
frontend and engine processes (the model's worker, which the layer never enters, is a third one).

The hooks' own cost is measured in rounds apart, with one clock under each hook and one over it, in
the running engine; what the clocks take is subtracted. A step is the time of a round over the
steps in it.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio

from bench.support.engine_switch import Switchboard, plugin
from bench.support.live_engine import Model, generated, live_engine, vllm_version
from bench.support.quantiles import mean_ratio
from nnrp_sched_patches.frontend import ledger_of
from nnrp_sched_patches.ledger_feed import followed

CONCURRENCY: Final = (1, 8, 64)
TOKENS: Final = {
    "tiny": {1: 192, 8: 96, 64: 32},
    "smollm2": {1: 24, 8: 24, 64: 12},
}
"""Of one request, so that a round takes about half a second, on SmolLM2 one."""
LEAST_PAIRS: Final = 4
COST_ROUNDS: Final = 7
"""In which the hooks are timed: one alone may meet a moment when others had the core."""
PROCESSES: Final = ("frontend", "engine")


async def serve(llm: Any, concurrency: int, tokens: int, number: int) -> float:
    """Seconds for `concurrency` requests at once, each followed by a second one."""

    async def client(name: str) -> None:
        for turn in range(2):
            await generated(llm, f"{name}-{turn}", tokens=tokens)

    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for client_number in range(concurrency):
            tasks.start_soon(client, f"round-{number}-{client_number}")
    return time.perf_counter() - began


class Bench:
    """One engine, and rounds on it."""

    def __init__(self, llm: Any, model: Model) -> None:
        self._llm = llm
        self._model = model
        self._board = Switchboard(llm)
        self._rounds = itertools.count()

    async def round(self, concurrency: int, *, on: bool, timed: bool = False) -> dict[str, Any]:
        """One round: its seconds, tokens, CPU seconds, and what the hooks took."""
        tokens = TOKENS[self._model][concurrency]
        await self._board.switch(on=on, timed=timed)
        async with AsyncExitStack() as stack:
            if on:
                ledger = ledger_of(self._llm.output_processor)
                await stack.enter_async_context(followed(self._llm, ledger))
            before = await self._board.told()
            seconds = await serve(self._llm, concurrency, tokens, next(self._rounds))
            after = await self._board.told()
        assert [after[process]["active"] for process in PROCESSES] == [on, on]
        cpu = sum(after[process]["cpu_s"] - before[process]["cpu_s"] for process in PROCESSES)
        made = 2 * concurrency * tokens
        return {"seconds": seconds, "tokens": made, "cpu_s": cpu, "told": after}

    async def pairs(self, concurrency: int, seconds: float) -> dict[str, Any]:
        """Rounds with and without, for so long."""
        rounds: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        until = time.monotonic() + seconds
        for number in itertools.count():
            for on in (True, False) if number % 2 else (False, True):
                rounds[on].append(await self.round(concurrency, on=on))
            if time.monotonic() > until and number + 1 >= LEAST_PAIRS:
                break
        rate = {on: [r["tokens"] / r["seconds"] for r in rounds[on]] for on in rounds}
        cpu = {on: [r["cpu_s"] / r["tokens"] for r in rounds[on]] for on in rounds}
        return {
            "pairs": len(rate[True]),
            "tokens/s off": sum(rate[False]) / len(rate[False]),
            "tokens/s on": sum(rate[True]) / len(rate[True]),
            "tokens/s ratio": mean_ratio(divided(rate)),
            "CPU ratio": mean_ratio(divided(cpu)),
        }

    async def costs(self, concurrency: int) -> dict[str, dict[str, float]]:
        """By process what its hooks took, in µs, and as part of its time: medians of rounds."""
        rounds = [await self._costs_of_round(concurrency) for _ in range(COST_ROUNDS)]
        return {
            process: {
                name: statistics.median(one[process][name] for one in rounds)
                for name in rounds[0][process]
            }
            for process in PROCESSES
        }

    async def _costs_of_round(self, concurrency: int) -> dict[str, dict[str, float]]:
        done = await self.round(concurrency, on=True, timed=True)
        result: dict[str, dict[str, float]] = {}
        requests = 2 * concurrency
        for process in PROCESSES:
            costs: dict[str, list[tuple[int, int]]] = done["told"][process]["costs"]
            us = {kind: sum(ns for _, ns in found) / 1e3 for kind, found in costs.items()}
            steps = costs["step"][0][0]
            step_us = done["seconds"] * 1e6 / steps
            result[process] = {
                "step us": step_us,
                "hooks us a step": us["step"] / steps,
                "hooks us a request": us["request"] / requests,
                "poll us a request": us.get("poll", 0.0) / requests,
                "hooks % of a step": 100 * us["step"] / steps / step_us,
                "all % of the time": 100 * sum(us.values()) / (done["seconds"] * 1e6),
            }
        return result


def divided(by_mode: dict[bool, list[float]]) -> list[float]:
    """Pair by pair, on by off."""
    return [on / off for on, off in zip(by_mode[True], by_mode[False], strict=True)]


async def measure(model: Model, concurrencies: Sequence[int], seconds: float) -> dict[str, Any]:
    """Figures by concurrency."""
    result: dict[str, Any] = {}
    slots = str(max(concurrencies))
    with plugin():
        async with live_engine(model, "--max-num-seqs", slots, patch=False) as serving:
            bench = Bench(serving.engine.async_llm, model)
            for concurrency in concurrencies:
                # What the first rounds load is loaded, with the layer and without.
                await bench.round(concurrency, on=True)
                await bench.round(concurrency, on=False)
                figures = await bench.pairs(concurrency, seconds)
                result[str(concurrency)] = figures | {"costs": await bench.costs(concurrency)}
    return result


def tell(result: dict[str, Any]) -> None:
    """Print the figures."""
    print("concurrency  pairs  tokens/s off       on   ratio, 95 % interval   CPU, 95 % interval")
    for concurrency, figures in result.items():
        ratio, low, high = figures["tokens/s ratio"]
        cpu, cpu_low, cpu_high = figures["CPU ratio"]
        print(
            f"{concurrency:>11} {figures['pairs']:6} {figures['tokens/s off']:13.0f}"
            f" {figures['tokens/s on']:8.0f}   {ratio:.3f} ({low:.3f}-{high:.3f})"
            f"   {cpu:.3f} ({cpu_low:.3f}-{cpu_high:.3f})"
        )
    print("own cost of the hooks      step   a step of it     a request      polls   all")
    for concurrency, figures in result.items():
        for process, cost in figures["costs"].items():
            print(
                f"{concurrency:>11} {process:9} {cost['step us']:7.0f} us"
                f" {cost['hooks us a step']:6.1f} us {cost['hooks % of a step']:.2f} %"
                f" {cost['hooks us a request']:8.1f} us {cost['poll us a request']:8.1f} us"
                f" {cost['all % of the time']:.2f} %"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="tiny")
    parser.add_argument("--seconds", type=float, default=30, help="for each concurrency (30)")
    parser.add_argument("--concurrency", type=int, nargs="+", choices=CONCURRENCY)
    arguments = parser.parse_args()
    concurrencies = arguments.concurrency or list(CONCURRENCY)
    result = asyncio.run(measure(arguments.model, concurrencies, arguments.seconds))
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"vLLM {vllm_version()}, {arguments.model}; the patch layer on and off in one engine")
    tell(result)


if __name__ == "__main__":
    main()
