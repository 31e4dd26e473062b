"""What one event costs in the profile: mapping, encoding, decoding, in microseconds.

    python -m bench.profile_mapper [--rounds N] [--json]

The cases take turns within each round, so that whatever else the machine does falls on all of
them; the figure is the median over the rounds. Targets: design, section 6.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from nnrp_sched.profile import (
    CHAT_COMPLETIONS,
    ChatMapper,
    Completed,
    OutputTextDelta,
    build_envelope,
    decode_event,
    encode_event,
    parse_envelope,
)

CALLS_A_ROUND = 2000
TARGETS = {"text chunk to bytes": 4.3, "non-streaming reply to bytes": 8.3}

HEAD: dict[str, Any] = {
    "id": "chatcmpl-3f2a9c0d51b84f6f9a7e",
    "object": "chat.completion.chunk",
    "created": 1764450000,
    "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
}


def chunk(delta: dict[str, Any]) -> dict[str, Any]:
    """A chunk with the members that vLLM 0.32 writes."""
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": None,
        "finish_reason": None,
        "token_ids": None,
    }
    return {**HEAD, "choices": [choice]}


def stream_case(delta: dict[str, Any], first: dict[str, Any]) -> Callable[[], None]:
    """Map one delta after the stream has begun, and encode what comes of it."""
    repeated = chunk(delta)

    def run() -> None:
        mapper = ChatMapper()
        mapper.chunk(chunk({"role": "assistant", "content": ""}))
        mapper.chunk(chunk(first))
        for _ in range(CALLS_A_ROUND):
            for event in mapper.chunk(repeated):
                encode_event(event)

    return run


def call_case(function: Callable[[], object]) -> Callable[[], None]:
    """Call a function as often as the other cases map a chunk."""

    def run() -> None:
        for _ in range(CALLS_A_ROUND):
            function()

    return run


def cases() -> dict[str, Callable[[], None]]:
    """Name → one round of it."""
    call = {
        "index": 0,
        "id": "chatcmpl-tool-1",
        "type": "function",
        "function": {"name": "lookup"},
    }
    message = {
        "role": "assistant",
        "content": "The capital of France is Paris. " * 4,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    body = {
        **HEAD,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "usage": {"prompt_tokens": 30, "total_tokens": 62, "completion_tokens": 32},
    }
    request = build_envelope(
        {
            "model": HEAD["model"],
            "messages": [
                {"role": role, "content": "What is the capital of France? " * 8}
                for _ in range(10)
                for role in ("user", "assistant")
            ],
            "stream": True,
        },
        request_id="req-1",
        timeout_ms=30000,
    )
    event = encode_event(OutputTextDelta(0, " capital"))
    operations = frozenset({CHAT_COMPLETIONS})
    return {
        "text chunk to bytes": stream_case({"content": " capital"}, {"content": "The"}),
        "reasoning chunk to bytes": stream_case({"reasoning": " so"}, {"reasoning": "The"}),
        "tool-call chunk to bytes": stream_case(
            {"tool_calls": [{"index": 0, "function": {"arguments": '"city'}}]},
            {"tool_calls": [call]},
        ),
        "non-streaming reply to bytes": call_case(lambda: encode_event(Completed(body))),
        "text event from bytes": call_case(lambda: decode_event(event)),
        "envelope of 20 messages from bytes": call_case(
            lambda: parse_envelope(request, operations)
        ),
    }


def measure(rounds: int) -> dict[str, float]:
    """Median microseconds a call, by case."""
    runs = cases()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return {
        name: statistics.median(measured) / CALLS_A_ROUND * 1e6
        for name, measured in seconds.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="rounds of 2000 calls a case")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    medians = measure(options.rounds)
    if options.json:
        print(json.dumps({"unit": "us", "medians": medians, "targets": TARGETS}))
        return
    for name, median in medians.items():
        target = f"   target {TARGETS[name]}" if name in TARGETS else ""
        print(f"{name:36} {median:7.2f} us{target}")


if __name__ == "__main__":
    main()
