"""The streams of one agent that have not ended."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct
from opentelemetry.trace import SpanKind

from nnrp_sched_orchestrator.program_scope import ProgramScope
from nnrp_sched_orchestrator.records import EventT, Receipt
from nnrp_sched_orchestrator.run_records import of_run_itself
from nnrp_sched_orchestrator.running import Because, Running
from nnrp_sched_orchestrator.snapshot import StreamKind, StreamSnapshot
from nnrp_sched_orchestrator.tap import OwnEvents, Tap
from nnrp_sched_orchestrator.trace import AttributeValue, TraceSpan
from nnrp_sched_orchestrator.work import Outcome, ResultT, Work

_SPANS: Final[Mapping[StreamKind, tuple[str, str]]] = MappingProxyType(
    {
        "model": ("chat", "gen_ai.request.model"),
        "tool": ("execute_tool", "gen_ai.tool.name"),
        "run": ("run", "nnrp.run.name"),
    }
)
"""The operation of a kind of stream, and the attribute that has its name (OpenTelemetry's
conventions for generative AI)."""


class _Live(Struct, eq=False):
    running: Running[Any, Any]
    kind: StreamKind
    name: str
    span: TraceSpan
    began: float
    timer: asyncio.TimerHandle | None = None


class LiveStreams:
    """Starts streams and knows them until they end."""

    def __init__(self, scope: ProgramScope, tap: Tap, stopped: Callable[[Receipt], None]) -> None:
        """`tap` gets their events, `stopped` the receipts of those that did not complete."""
        self._scope = scope
        self._tap = tap
        self._stopped = stopped
        self._live: dict[str, _Live] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Running[Any, Any]]:
        return iter([each.running for each in self._live.values()])

    def count(self, *kinds: StreamKind) -> int:
        """How many there are of these kinds."""
        return sum(each.kind in kinds for each in self._live.values())

    def has(self, span: TraceSpan) -> bool:
        """Whether a span is that of one of them."""
        return any(each.span is span for each in self._live.values())

    def snapshot(self) -> tuple[StreamSnapshot, ...]:
        """How each of them stands."""
        now = time.monotonic()
        return tuple(
            StreamSnapshot(
                each.running.id,
                each.kind,
                each.name,
                each.running.state,
                each.running.events,
                now - each.began,
            )
            for each in self._live.values()
        )

    def span(
        self,
        kind: StreamKind,
        name: str,
        agent: str,
        parent: TraceSpan,
        traceparent: str | None = None,
    ) -> TraceSpan:
        """The span of a stream that is about to start, below `parent` or what is named instead."""
        operation, member = _SPANS[kind]
        return TraceSpan(
            f"{operation} {name}".rstrip(),
            parent,
            kind=SpanKind.CLIENT if kind == "model" else SpanKind.INTERNAL,
            attributes={
                "gen_ai.operation.name": operation,
                member: name or None,
                "gen_ai.agent.id": agent,
                "gen_ai.conversation.id": self._scope.name,
            },
            traceparent=traceparent,
        )

    def launch(
        self,
        work: Work[EventT, ResultT],
        stream_id: str,
        kind: StreamKind,
        name: str,
        span: TraceSpan,
    ) -> Running[EventT, ResultT]:
        """Start a stream, in a task that belongs to the orchestrator."""
        settings = self._scope.settings.stream
        running = Running(
            stream_id,
            work,
            settings=settings,
            tap=OwnEvents(self._tap, of_run_itself) if kind == "run" else self._tap,
            ended=self._ended,
            traceparent=span.traceparent,
        )
        self._live[stream_id] = _Live(running, kind, name, span, time.monotonic())
        self._scope.tasks.start(running.run(), stream_id, span.task_context())
        return running

    def end_at(self, stream_id: str, moment: float, reason: str, because: Because) -> None:
        """Stop a stream at a moment of the monotonic clock, unless it ends before."""
        live = self._live[stream_id]
        live.timer = call_at(moment, lambda: live.running.end(reason, because))

    def _ended(self, running: Running[Any, Any]) -> None:
        live = self._live.pop(running.id)
        if live.timer is not None:
            live.timer.cancel()
        result, receipt, error = running.final, running.receipt, running.error
        if receipt is not None and (result is None or result.status != "completed"):
            self._stopped(receipt)
        why = None if error is None else getattr(error, "code", type(error).__name__)
        attributes = {} if result is None else _attributes(result, receipt)
        live.span.end(attributes, error=why)


def call_at(moment: float, function: Callable[[], None]) -> asyncio.TimerHandle:
    """Call something at a moment of the monotonic clock."""
    delay = max(0.0, moment - time.monotonic())
    return asyncio.get_running_loop().call_later(delay, function)


def _attributes(result: Outcome, receipt: Receipt | None) -> dict[str, AttributeValue | None]:
    usage: dict[str, Any] = result.usage or {}
    found: dict[str, AttributeValue | None] = {
        "nnrp.outcome": result.status,
        "gen_ai.usage.output_tokens": usage.get("completion_tokens"),
        "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
        "nnrp.queue_ms": result.timings.queue_ms,
    }
    if receipt is not None:
        found["nnrp.operation.name"] = receipt.operation
        found["nnrp.endpoint"] = receipt.endpoint
    if receipt is not None and result.status != "completed":
        found |= {
            "nnrp.abort.reason": receipt.reason or None,
            "nnrp.abort.state": receipt.state,
            "nnrp.abort.accepted": receipt.accepted,
            "nnrp.abort.authoritative": receipt.authoritative,
            "nnrp.abort.tokens": receipt.tokens,
        }
    return found
