"""What the ledger keeps of one request, and how its choices add up to it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct, field

from nnrp_sched.engine.records import (
    AbortReceipt,
    AbortState,
    Caller,
    RequestState,
    Source,
    Timings,
)

_LIVELIEST: tuple[RequestState, ...] = (
    "running",
    "preempted",
    "waiting",
    "blocked",
    "admitting",
    "finished",
    "unknown",
)
"""Of several choices the one furthest left says where the request stands."""


def summed_state(states: Iterable[AbortState]) -> RequestState:
    """Where a request stands whose choices stand at `states`; `unknown` for none."""
    reached = set(states)
    for state in _LIVELIEST:
        if state in reached:
            return state
    return "unknown"


class Part(Struct, gc=False):
    """One request as the engine counts them: the only choice of ours, or one of several.

    Times are monotonic milliseconds.
    """

    internal_id: str
    handle: str
    """What vLLM's frontend aborts without a leak: the parent's internal id, if there is one."""
    registered: float
    priority: int = 0
    count: Callable[[], int] | None = None
    """Output tokens so far by vLLM's frontend; gone once the part has ended."""
    state: RequestState = "waiting"
    position: int | None = None
    engine_tokens: int = 0
    """Output tokens by the engine's last word, which the frontend's count may be behind of."""
    queued: float | None = None
    scheduled: float | None = None
    first_token: float | None = None
    preempted: float | None = None
    finished: float | None = None
    reason: str | None = None
    """vLLM's finish reason, or what ended it otherwise."""

    @property
    def tokens(self) -> int:
        """Output tokens so far, by whoever counted more."""
        return max(self.engine_tokens, self.count() if self.count is not None else 0)

    def preempted_at(self, at: float | None) -> None:
        """Note a preemption, told late or twice perhaps; the last one counts."""
        if at is not None:
            self.preempted = max(at, self.preempted or at)

    def end(self, reason: str, at: float, tokens: int | None = None) -> None:
        """The part is over; only the first word on it counts, bar the tokens."""
        self.engine_tokens = max(self.tokens, tokens or 0)
        self.count = None
        if self.finished is None:
            self.state, self.position, self.finished, self.reason = "finished", None, at, reason


AbortCause = Literal["requested", "client_gone", "failed"]
"""Why a request is aborted: somebody asked for it, its caller has left, or vLLM's frontend tripped
over it."""


class Entry(Struct, eq=False):
    """One request as its caller counts them."""

    id: str
    """As users see it; unique among the live ones."""
    caller: Caller
    source: Source
    submitted: float
    names: tuple[str, ...] = ()
    """Further names to find it by: vLLM's external id, the handle of the engine port."""
    traceparent: str | None = None
    operation: str | None = None
    """What was asked for, as OpenTelemetry's gen_ai conventions name it."""
    cancel: Callable[[], None] | None = None
    """Stops the call before vLLM's frontend has it; None when nobody can."""
    cut: bool = False
    """Whether an abort has stopped the call before vLLM's frontend had it."""
    moved: Callable[[RequestState], None] | None = None
    """Told where it stands whenever the scheduler moved it; must not raise."""
    told: RequestState | None = None
    """The last state that `moved` was told."""
    admissions: int = 0
    """How many calls of vLLM's `add_request` are under way for it."""
    when_settled: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Called once, when no admission is under way any more or the caller is gone."""
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    finished: float | None = None
    reason: str | None = None
    receipt: AbortReceipt | None = None
    """What the abort of it did, if there was one."""
    abort_cause: AbortCause | None = None
    """Of the first abort; None when nobody told."""
    aborting: "asyncio.Task[None] | None" = None
    """The abort of it that is under way."""

    @property
    def state(self) -> RequestState:
        """Where it stands."""
        if self.finished is not None:
            return "finished"
        if not self.parts:
            return "admitting"
        return summed_state(part.state for part in self.parts.values())

    def tell(self) -> None:
        """Tell where it stands, if that is news and it has not ended."""
        state = self.state
        if self.moved is not None and state != self.told and self.finished is None:
            self.told = state
            self.moved(state)

    @property
    def tokens(self) -> int:
        """Output tokens so far, over all choices."""
        return sum(part.tokens for part in self.parts.values())

    @property
    def priority(self) -> int:
        """The engine's, lower is sooner."""
        return min((part.priority for part in self.parts.values()), default=0)

    @property
    def position(self) -> int | None:
        """Requests of the engine that run before its first waiting choice."""
        places = [part.position for part in self.parts.values() if part.position is not None]
        waits = self.state in ("waiting", "blocked", "preempted")
        return min(places) if waits and places else None

    @property
    def live_parts(self) -> list[Part]:
        """The choices that have not ended."""
        return [part for part in self.parts.values() if part.finished is None]

    @property
    def timings(self) -> Timings:
        """First and last times over all choices."""
        parts = self.parts.values()
        return Timings(
            submitted=self.submitted,
            registered=_first(part.registered for part in parts),
            queued=_first(part.queued for part in parts),
            scheduled=_first(part.scheduled for part in parts),
            first_token=_first(part.first_token for part in parts),
            preempted=max((p.preempted for p in parts if p.preempted is not None), default=None),
            finished=self.finished,
        )

    def aborted_elsewhere(self, state: RequestState) -> None:
        """A choice, or all of it, was stopped by another frontend, which found it at `state`.

        That receipt is the request's here too.
        """
        before = self.receipt
        told = (state,) if before is None else (before.state, state)
        latency_ms = 0.0 if before is None else before.latency_ms
        self.abort_cause = self.abort_cause or "requested"
        self.receipt = AbortReceipt(
            self.id, summed_state(told), True, True, self.tokens, latency_ms
        )

    def queue_delay(self, now: float) -> float:
        """Milliseconds from being queued to first running, until `now` if it has not run."""
        times = self.timings
        start = next(t for t in (times.queued, times.registered, self.submitted) if t is not None)
        end = next(t for t in (times.scheduled, self.finished, now) if t is not None)
        return max(0.0, end - start)


def _first(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)
