"""The scripted engine's scheduler: who runs, who waits, in which order."""

import itertools
from collections.abc import Callable

import anyio
import msgspec
from msgspec import Struct, field

from nnrp_sched.engine.port import AbortBy
from nnrp_sched.engine.records import (
    AbortReceipt,
    ChatCall,
    QueuedRequest,
    QueueSnapshot,
    Reprioritized,
    RequestState,
    ServedCall,
    Timings,
)
from nnrp_sched.errors import BackendError

Clock = Callable[[], float]
"""Milliseconds that only rise."""


class LiveCall(Struct, eq=False):
    """A call in flight."""

    call: ChatCall
    number: int
    """Calls count up as they arrive."""
    priority: int
    timings: Timings
    go: anyio.Event = field(default_factory=anyio.Event)
    """Set when the call got a slot or was aborted: it waits no longer."""
    aborted: anyio.Event = field(default_factory=anyio.Event)
    tokens: int = 0

    @property
    def state(self) -> RequestState:
        """Where it stands."""
        if self.aborted.is_set():
            return "finished"
        return "running" if self.go.is_set() else "waiting"

    def tell(self) -> None:
        """Tell the caller where the call stands now."""
        if self.call.moved is not None:
            self.call.moved(self.state)

    def count_token(self, now: float) -> None:
        """Another piece of content came out."""
        self.tokens += 1
        if self.tokens == 1:
            self.timings = msgspec.structs.replace(self.timings, first_token=now)


class ScriptedQueue:
    """The live calls of one engine.

    `slots` calls run at once (None: all of them); the others wait, sorted by priority and arrival
    under the policy `priority` and by arrival alone under `fcfs`.
    """

    def __init__(self, slots: int | None, policy: str, clock: Clock) -> None:
        self._slots = slots
        self._policy = policy
        self._clock = clock
        self._numbers = itertools.count()
        self._live: dict[str, LiveCall] = {}
        self._running: dict[str, LiveCall] = {}
        self._waiting: dict[str, LiveCall] = {}

    def enter(self, call: ChatCall) -> LiveCall:
        """Take a call in; it may run once its `go` is set. Raises `BackendError` for a known id."""
        if call.request_id in self._live:
            raise BackendError(f"Request id {call.request_id} already running.", status=400)
        now = self._clock()
        live = self._live[call.request_id] = LiveCall(
            call,
            next(self._numbers),
            call.priority,
            Timings(submitted=now, registered=now, queued=now),
        )
        self._waiting[call.request_id] = live
        live.tell()
        self._fill()
        return live

    def leave(self, live: LiveCall) -> None:
        """Forget a call, however it ended, and let the next one run."""
        del self._live[live.call.request_id]
        self._withdraw(live)
        self._fill()
        if live.call.served is not None:
            times = msgspec.structs.replace(live.timings, finished=self._clock())
            reason = "abort" if live.aborted.is_set() else None
            live.call.served(ServedCall(times, live.tokens, reason))

    def tokens(self, request_id: str) -> int | None:
        """Tokens of a live call by its handle."""
        live = self._live.get(request_id)
        return None if live is None else live.tokens

    def abort(self, request_id: str) -> AbortReceipt:
        """End a call by its handle."""
        (receipt,) = self._abort({request_id: self._live.get(request_id)})
        return receipt

    def abort_operations(self, ids: tuple[str, ...], by: AbortBy) -> list[AbortReceipt]:
        """End calls by what users know of them."""
        if by == "id":
            return self._abort({name: self._seen(name) for name in ids})
        return self._abort(
            {
                live.call.visible_id: live
                for live in self._live.values()
                if getattr(live.call.caller, by) in ids and live.state != "finished"
            }
        )

    def reprioritize(self, visible_id: str, priority: int) -> Reprioritized:
        """Sort a waiting call in anew."""
        live = self._seen(visible_id)
        if self._policy != "priority":
            return Reprioritized(visible_id, False, "policy_fcfs")
        if live is None:
            return Reprioritized(visible_id, False, "unknown")
        if live.state != "waiting":
            return Reprioritized(visible_id, False, "not_waiting")
        live.priority = priority
        return Reprioritized(visible_id, True, "applied")

    def snapshot(self) -> QueueSnapshot:
        """The running calls as they began, then the waiting ones by their turn."""
        now = self._clock()
        waiting = sorted(self._waiting.values(), key=self._turn)
        rows = [_row(live, now, None) for live in self._running.values()]
        rows += [_row(live, now, position) for position, live in enumerate(waiting)]
        return QueueSnapshot(tuple(rows), len(self._running), len(waiting), True, now)

    def _abort(self, wanted: dict[str, LiveCall | None]) -> list[AbortReceipt]:
        """End all of them before any other call gets a slot of theirs."""
        receipts: list[AbortReceipt] = []
        for name, live in wanted.items():
            state: RequestState = "unknown" if live is None else live.state
            accepted = state not in ("unknown", "finished")
            tokens = None if live is None else live.tokens
            receipts.append(AbortReceipt(name, state, accepted, True, tokens, 0.0))
            if live is not None:
                live.aborted.set()
                live.go.set()
                self._withdraw(live)
        self._fill()
        return receipts

    def _withdraw(self, live: LiveCall) -> None:
        """Take a call out of its slot or its place in the queue; doing it twice is fine."""
        self._running.pop(live.call.request_id, None)
        self._waiting.pop(live.call.request_id, None)

    def _fill(self) -> None:
        """Let waiting calls run while there are free slots."""
        while self._waiting and (self._slots is None or len(self._running) < self._slots):
            live = min(self._waiting.values(), key=self._turn)
            del self._waiting[live.call.request_id]
            self._running[live.call.request_id] = live
            live.timings = msgspec.structs.replace(live.timings, scheduled=self._clock())
            live.go.set()
            live.tell()

    def _turn(self, live: LiveCall) -> tuple[int, int]:
        return (live.priority if self._policy == "priority" else 0, live.number)

    def _seen(self, visible_id: str) -> LiveCall | None:
        return next(
            (live for live in self._live.values() if live.call.visible_id == visible_id), None
        )


def _row(live: LiveCall, now: float, position: int | None) -> QueuedRequest:
    call, timings = live.call, live.timings
    assert timings.queued is not None
    until = now if timings.scheduled is None else timings.scheduled
    return QueuedRequest(
        id=call.visible_id,
        program=call.caller.program,
        agent=call.caller.agent,
        parent=call.caller.parent,
        source="nnrp",
        state=live.state,
        queue_delay_ms=until - timings.queued,
        position=position,
        estimate_ms=None,
        tokens=live.tokens,
        priority=live.priority,
        timings=timings,
    )
