"""How long an abort's receipt takes on a busy engine, against the scheduler steps of the same run.

    python -m bench.abort_latency [--requests 2000] [--model smollm2|tiny-chat] [--json]

The storm of tests/support/abort_storm.py: 20 chats at a time on 8 slots, streaming and whole, one
and several choices, stopped by id, by list or by leaving, at random moments from before admission
to after the end. Steps are timed in the engine's process, from the scheduling of a step until its
tokens are known, by a scheduler class that writes down what it does; the engine answers between two
steps. A receipt counts when the engine gave it: what was told to vLLM's frontend alone, before
admission or after the end, takes no step and would only make the figures better.

`beyond its step` is, for each receipt, its latency less the longest of the steps that ended while
it was waited for.
"""

import argparse
import json
import os
import tempfile
from bisect import bisect_left, bisect_right
from collections import defaultdict
from pathlib import Path
from typing import Any

import anyio

from bench.support.live_engine import live_engine, vllm_version
from bench.support.quantiles import quantile
from nnrp_sched_patches.channel import call_engine
from tests.support import step_recorder
from tests.support.abort_storm import Chat, Storm, chat_name, planned, untruth
from tests.support.step_recorder import Life, Record

ALLOWANCE_MS = 5.0
"""What a receipt may take beyond one step."""
_COUNTED = (
    "tokens after the receipt",
    "tokens told that never came",
    "schedules after the abort",
    "receipts that differ from the engine",
    "left in vLLM's frontend and the ledger",
    "left in the engine",
    "KV cache in use at the end",
)
_TARGETS = ("p99 within one p99 step + 5 ms", "p99 within its own step + 5 ms")
_ENGINE_STATES = ("waiting", "blocked", "running", "preempted")


async def measure(model: Any, requests: int) -> dict[str, Any]:
    """All figures, in ms where they are times."""
    with tempfile.TemporaryDirectory(prefix="abort-latency-") as folder:
        steps = Path(folder) / "steps"
        os.environ[step_recorder.VARIABLE] = str(steps)
        flags = ("--scheduler-cls", step_recorder.SCHEDULER)
        async with live_engine(model, *flags) as serving:
            # Random sampling loads its part at its first use; the storm of the warm-up has all.
            await Storm(serving.engine, planned(30, seed=1, prefix="warm")).run()
            began = anyio.current_time()
            chats = await Storm(serving.engine, planned(requests, seed=2)).run()
            lasted = anyio.current_time() - began
            llm = serving.engine.async_llm
            depths = await call_engine(llm, "nnrp_queue", {}, wait_s=30)
            record = step_recorder.read_file(steps)
            processor = llm.output_processor
            left = (processor.request_states, processor.parent_requests, serving.engine.ledger.live)
    return {
        "vllm": vllm_version(),
        "seconds": round(lasted, 1),
        **figures(chats, record),
        "receipts that differ from the engine": _untruths(chats, record),
        "left in vLLM's frontend and the ledger": sum(map(len, left)),
        "left in the engine": depths["running"] + depths["waiting"] + depths["blocked"],
        "KV cache in use at the end": depths["kv_usage"],
    }


def _untruths(chats: list[Chat], record: Record) -> int:
    parts: dict[str, list[Life]] = defaultdict(list)
    for one, life in record.lives.items():
        parts[chat_name(one)].append(life)
    return sum(untruth(chat, parts[chat.name]) is not None for chat in chats)


def figures(chats: list[Chat], record: Record) -> dict[str, Any]:
    """What the callers' clocks and the witness's say together."""
    timed = [
        (chat.asked_ns, chat.told_ns)
        for chat in chats
        if chat.asked_ns is not None
        and chat.told_ns is not None
        and chat.receipts[0].accepted
        and chat.receipts[0].state in _ENGINE_STATES
    ]
    begin = min(asked for asked, _ in timed)
    steps = [(start, end) for start, end in record.steps_ns if end > begin]
    ends = [end for _, end in steps]
    latencies = [(told - asked) / 1e6 for asked, told in timed]
    beyond: list[float] = []
    for asked, told in timed:
        waited_for = steps[bisect_left(ends, asked) : bisect_right(ends, told)]
        longest = max((end - start for start, end in waited_for), default=0)
        beyond.append((told - asked - longest) / 1e6)
    durations = [(end - start) / 1e6 for start, end in steps]
    late, cut, missed = 0, 0, 0
    for chat in chats:
        stopped = [receipt for receipt in chat.receipts if receipt.accepted]
        if stopped and not chat.cancelled:
            late += max(0, chat.delivered - (stopped[0].tokens or 0))
            cut += max(0, (stopped[0].tokens or 0) - chat.delivered)
    for life in record.lives.values():
        if life.asked_in is not None:
            missed += sum(step > life.asked_in for step in life.steps)
    states = [chat.receipts[0].state for chat in chats if chat.receipts]
    return {
        "requests": len(chats),
        "states": {state: states.count(state) for state in sorted(set(states))},
        "steps": len(steps),
        "step": _spread(durations),
        "receipts": len(timed),
        "receipt": _spread(latencies),
        "beyond its step": _spread(beyond),
        "tokens after the receipt": late,
        "tokens told that never came": cut,
        "schedules after the abort": missed,
        "p99 within one p99 step + 5 ms": quantile(latencies, 0.99)
        <= quantile(durations, 0.99) + ALLOWANCE_MS,
        "p99 within its own step + 5 ms": quantile(beyond, 0.99) <= ALLOWANCE_MS,
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "p50": round(quantile(values, 0.5), 2),
        "p99": round(quantile(values, 0.99), 2),
        "max": round(max(values), 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--requests", type=int, default=2000, help="chats in the storm (2000)")
    parser.add_argument("--model", choices=("smollm2", "tiny-chat"), default="smollm2")
    arguments = parser.parse_args()
    result = anyio.run(measure, arguments.model, arguments.requests)
    if arguments.json:
        print(json.dumps(result))
        return
    print(
        f"vLLM {result['vllm']}, {result['requests']} requests in {result['seconds']} s;", end=" "
    )
    print(", ".join(f"{count} {state}" for state, count in result["states"].items()))
    print(f"{'ms':34} {'p50':>8} {'p99':>8} {'max':>8}")
    for name, count in (
        ("step", "steps"),
        ("receipt", "receipts"),
        ("beyond its step", "receipts"),
    ):
        spread = result[name]
        label = f"{name} ({result[count]})"
        print(f"{label:34} {spread['p50']:8.2f} {spread['p99']:8.2f} {spread['max']:8.2f}")
    for name in _COUNTED:
        print(f"{name:38} {result[name]:4}")
    for name in _TARGETS:
        print(f"{name:38} {'yes' if result[name] else 'NO':>4}")


if __name__ == "__main__":
    main()
