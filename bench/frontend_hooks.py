"""What our hooks in vLLM's frontend cost: each engine step by its outputs, and each request once.

    python bench/frontend_hooks.py [--json] [--rounds N]

Prints the median microseconds of a call with the hook, of the same call without it, and the
difference, which is the hook. The methods under the hooks are stand-ins that do next to nothing.
Rounds are interleaved, so that a slow moment of the machine meets all alike.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from nnrp_sched_patches import frontend
from nnrp_sched_patches.hook_forms import Switch, make_around, make_around_async

BATCHES = (1, 8, 64)
STEPS = 300
REQUESTS = 100


class Processor:
    """An OutputProcessor that keeps a table and does no work."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}
        self.parent_requests: dict[str, Any] = {}
        self.nothing = SimpleNamespace(request_outputs=[], reqs_to_abort=[])

    def add_request(self, request: Any, prompt: Any = None) -> None:
        """Register."""
        self.request_states[request.request_id] = request

    def process_outputs(self, outputs: list[Any], timestamp: float | None = None) -> Any:
        """Forget what ended; the caller lists that, so that a step costs no loop here."""
        if timestamp is None:
            for output in outputs:
                del self.request_states[output.request_id]
        return self.nothing


class Llm:
    """An AsyncLLM that registers and sends nothing."""

    engine_core = SimpleNamespace(client_count=1)

    def __init__(self, processor: Processor) -> None:
        self.output_processor = processor

    async def add_request(self, request_id: str) -> None:
        """Admit one request."""
        self.output_processor.add_request(_request(request_id))


class HookedProcessor(Processor):
    """With F3 and F4."""

    add_request = make_around(
        Processor, vars(Processor)["add_request"], frontend.add_request, Switch("F3")
    )
    process_outputs = make_around(
        Processor, vars(Processor)["process_outputs"], frontend.process_outputs, Switch("F4")
    )


class HookedLlm(Llm):
    """With F2."""

    add_request = make_around_async(Llm, vars(Llm)["add_request"], frontend.admission, Switch("F2"))


def _request(request_id: str) -> Any:
    detokenizer = SimpleNamespace(num_output_tokens=lambda: 7)
    return SimpleNamespace(
        request_id=f"{request_id}-12345678",
        external_req_id=request_id,
        priority=0,
        parent_req=None,
        detokenizer=detokenizer,
    )


class Output(msgspec.Struct, gc=False):
    """As vLLM's EngineCoreOutput."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: str | None = None
    events: list[Any] | None = None


def _output(request_id: str, finish: str | None = None) -> Output:
    return Output(f"{request_id}-12345678", [1], finish)


async def _microseconds(work: Callable[[], Awaitable[None]], calls: int) -> float:
    start = time.perf_counter_ns()
    await work()
    return (time.perf_counter_ns() - start) / calls / 1e3


def _steps(processor: Processor, outputs: list[Any]) -> Callable[[], Awaitable[None]]:
    async def steps() -> None:
        process_outputs = processor.process_outputs
        for _ in range(STEPS):
            process_outputs(outputs, 1.0)

    return steps


def _requests(llm: Llm) -> Callable[[], Awaitable[None]]:
    names = [f"request-{number}" for number in range(REQUESTS)]
    first = {name: [_output(name)] for name in names}
    last = {name: [_output(name, "stop")] for name in names}

    async def requests() -> None:
        process_outputs = llm.output_processor.process_outputs
        for name in names:
            await llm.add_request(name)
            process_outputs(first[name], 1.0)
            process_outputs(last[name])

    return requests


async def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Median microseconds by name: `hooked`, `bare`, and their difference `hook`."""
    work: dict[str, dict[str, tuple[Callable[[], Awaitable[None]], int]]] = {}
    for kind, processor, llm_class in (
        ("bare", Processor(), Llm),
        ("hooked", HookedProcessor(), HookedLlm),
    ):
        llm = llm_class(processor)
        running = [f"running-{number}" for number in range(max(BATCHES))]
        for name in running:
            await llm.add_request(name)
        outputs = [_output(name) for name in running]
        processor.process_outputs(outputs, 1.0)
        for batch in BATCHES:
            steps = (_steps(processor, outputs[:batch]), STEPS)
            work.setdefault(f"a step with {batch} outputs", {})[kind] = steps
        work.setdefault("a request from admission to end", {})[kind] = (_requests(llm), REQUESTS)
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, kinds in work.items():
            for kind, (run, calls) in kinds.items():
                times.setdefault((name, kind), []).append(await _microseconds(run, calls))
    result: dict[str, dict[str, float]] = {}
    for name in work:
        hooked, bare = (statistics.median(times[name, kind]) for kind in ("hooked", "bare"))
        figures = {"hooked": hooked, "bare": bare, "hook": hooked - bare}
        result[name] = {key: round(value, 3) for key, value in figures.items()}
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=50, help="interleaved rounds (50)")
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments.rounds))
    if arguments.json:
        print(json.dumps(result))
        return
    for name, figures in result.items():
        print(f"{name:34} {figures['hook']:7.2f} us  (call {figures['bare']:.2f} us without)")


if __name__ == "__main__":
    main()
