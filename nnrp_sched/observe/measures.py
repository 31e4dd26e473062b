"""What is measured of each operation, in one table that every exporter of metrics reads."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from nnrp_sched.observe.record import OperationRecord

SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""The limits of the histograms' buckets."""


class Measure(Struct, frozen=True):
    """One histogram or counter. Times are in seconds."""

    name: str
    """For Prometheus, without its unit."""
    convention: str
    """For OpenTelemetry."""
    meaning: str
    value: Callable[[OperationRecord], float | None]


def _seconds(began: float | None, ended: float | None) -> float | None:
    return None if began is None or ended is None else max(0.0, ended - began) / 1e3


def _per_token(record: OperationRecord) -> float | None:
    times, tokens = record.timings, record.output_tokens
    seconds = _seconds(times.first_token, times.finished)
    return None if seconds is None or tokens is None or tokens < 2 else seconds / (tokens - 1)


def _abort(record: OperationRecord) -> float | None:
    abort = record.abort
    return None if abort is None else _seconds(abort.began, abort.ended)


DURATIONS: Final = (
    Measure(
        "operation_duration",
        "gen_ai.server.request.duration",
        "From the submit to the terminal.",
        lambda record: _seconds(record.began, record.ended),
    ),
    Measure(
        "operation_first_event",
        "nnrp.operation.first_event",
        "From the submit to the first event that was sent.",
        lambda record: _seconds(record.began, record.first_event),
    ),
    Measure(
        "operation_first_token",
        "gen_ai.server.time_to_first_token",
        "From the submit to the engine's first token.",
        lambda record: _seconds(record.began, record.timings.first_token),
    ),
    Measure(
        "operation_per_token",
        "gen_ai.server.time_per_output_token",
        "Between the engine's tokens after the first, on average.",
        _per_token,
    ),
    Measure(
        "operation_queue_delay",
        "nnrp.operation.queue_delay",
        "From being queued in the scheduler to first running.",
        lambda record: _seconds(record.timings.queued, record.timings.scheduled),
    ),
    Measure(
        "operation_abort_latency",
        "nnrp.operation.abort.duration",
        "From the wish to end an operation to the engine's receipt.",
        _abort,
    ),
)

AMOUNTS: Final = (
    Measure(
        "operation_events", "nnrp.operation.events", "Events sent.", lambda record: record.events
    ),
    Measure(
        "operation_event_bytes",
        "nnrp.operation.event_bytes",
        "Bytes of the events sent.",
        lambda record: record.event_bytes,
    ),
    Measure(
        "operation_prompt_tokens",
        "nnrp.operation.input_tokens",
        "Tokens of the prompts, of the answers that tell.",
        lambda record: record.input_tokens,
    ),
    Measure(
        "operation_completion_tokens",
        "nnrp.operation.output_tokens",
        "Tokens produced.",
        lambda record: record.output_tokens,
    ),
)
