"""What the hooks in the engine process cost: a wrapped scheduler against the same one unwrapped.

    python bench/engine_hooks.py [--json] [--rounds N]

Prints microseconds per engine step, per request, and per answered long-poll. The scheduler is a
stand-in that does nothing, so that the difference is the hooks alone: wrapper, body and ring.
Rounds are interleaved; of each the best is taken, and the difference of the bests.
"""

import argparse
import json
import time
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from nnrp_sched_patches.engine_hooks import ENGINE_HOOKS
from nnrp_sched_patches.hook_forms import ABSENT, MAKERS, Switch
from nnrp_sched_patches.scheduler_watch import watch_of

CALLS = 2000

_STATUS = SimpleNamespace(name="FINISHED_STOPPED")


def output(new: int) -> Any:
    """A SchedulerOutput with `new` newly scheduled requests among 64 running ones."""
    ids = [f"chatcmpl-{number:032d}-0123abcd" for number in range(new)]
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=request_id) for request_id in ids],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        preempted_req_ids=set(),
        total_num_scheduled_tokens=64,
    )


class Scheduler:
    """The methods that have hooks, and nothing behind them."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.kv_holding_waiting: list[Any] = []
        self.output = output(0)

    def add_request(self, request: Any) -> None:
        """Keep it."""
        self.requests[request.request_id] = request

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """What was prepared."""
        return self.output

    def finish_requests(self, request_ids: Any, finished_status: Any) -> list[Any]:
        """Nothing."""
        return []

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> None:
        del self.requests[request.request_id]

    def live(self, request: Any) -> None:
        """A request that comes and goes."""
        self.add_request(request)
        self._free_request(request)


def hooked() -> Scheduler:
    """The same with the hooks of the tables."""
    made: type[Scheduler] = type("Hooked", (Scheduler,), {})
    for hook in ENGINE_HOOKS:
        owner, _, method = hook.seam.name.rpartition(".")
        if owner == "Scheduler":
            raw = vars(Scheduler)[method]
            setattr(made, method, MAKERS[hook.form](made, raw, body(hook.body), Switch(hook.name)))
    return made()


def body(name: str) -> Any:
    """The function that a row names."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def microseconds_each(work: Callable[[], object]) -> float:
    """The time of one of CALLS calls."""
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        work()
    return (time.perf_counter_ns() - start) / CALLS / 1000


def measure(rounds: int) -> dict[str, float]:
    """Microseconds by name."""
    plain, wrapped = Scheduler(), hooked()
    (hook,) = [hook for hook in ENGINE_HOOKS if hook.name == "E1.poll"]
    poll = MAKERS[hook.form](type(plain), ABSENT, body(hook.body), Switch(hook.name))
    request = SimpleNamespace(
        **{"request_id": "chatcmpl-0-0123abcd", "client_index": 0, "priority": 0},
        **{"status": _STATUS, "num_output_tokens": 100},
    )
    engine = SimpleNamespace(scheduler=wrapped)
    transitions = watch_of(wrapped).transitions

    def step_of(scheduler: Scheduler, new: int) -> Callable[[], object]:
        def step() -> None:
            scheduler.schedule()

        scheduler.output = output(new)
        return step

    def life_of(scheduler: Scheduler) -> Callable[[], object]:
        return lambda: scheduler.live(request)

    def polled(new: int) -> Callable[[], object]:
        step = step_of(wrapped, new)

        def work() -> None:
            poll(engine, {"since": transitions.seq, "wait_s": 60.0, "max": 256})
            step()

        return work

    best: dict[str, float] = {}

    def take(name: str, work: Callable[[], object]) -> None:
        best[name] = min(best.get(name, float("inf")), microseconds_each(work))

    for _ in range(rounds):
        for new in (0, 1, 8):
            take(f"plain_{new}", step_of(plain, new))
            take(f"wrapped_{new}", step_of(wrapped, new))
        take("plain_life", life_of(plain))
        take("wrapped_life", life_of(wrapped))
        take("polled_8", polled(8))
    result = {f"step_{new}_new": best[f"wrapped_{new}"] - best[f"plain_{new}"] for new in (0, 1, 8)}
    result["request"] = best["wrapped_life"] - best["plain_life"]
    result["poll_8_events"] = best["polled_8"] - best["wrapped_8"]
    return {name: round(value, 3) for name, value in result.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=30, help="interleaved rounds (30)")
    arguments = parser.parse_args()
    result = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps(result))
        return
    for name, label in (
        ("step_0_new", "a step without transitions"),
        ("step_1_new", "a step that schedules 1 new request"),
        ("step_8_new", "a step that schedules 8 new requests"),
        ("request", "a request's arrival and end"),
        ("poll_8_events", "a long-poll: asked, and answered with 8 transitions"),
    ):
        print(f"{label:52} {result[name]:7.2f} µs")


if __name__ == "__main__":
    main()
