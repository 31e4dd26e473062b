"""The ledger: every request of one vLLM frontend, where it stands and when what happened to it.

Pure: told by the hooks (`frontend`), by the engine's events (`ledger_feed`) and by the engine port.
Live requests stay; of the finished ones a bounded number is remembered. Each fact has one place
where it is exact: first token and end come from the outputs that the frontend handles, the rest
from the scheduler, by its events while a request waits and again with its first output. So a lost
poll costs freshness, never the final times.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from nnrp_sched.engine.records import (
    Caller,
    QueuedRequest,
    QueueSnapshot,
    RequestState,
    Source,
)
from nnrp_sched_patches.drain import DrainRate
from nnrp_sched_patches.ledger_records import Entry, Part

FINISHED_KEPT: Final = 1024
"""How many finished requests are remembered."""

_STARTED: Final = ("scheduled", "resumed")
_STATES: Final[Mapping[str, RequestState]] = {
    "queued": "waiting",
    "scheduled": "running",
    "resumed": "running",
    "preempted": "preempted",
}
_REASONS: Final[Mapping[str, str]] = {
    "FINISHED_STOPPED": "stop",
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_ABORTED": "abort",
    "FINISHED_REPETITION": "repetition",
}
"""Names of vLLM's RequestStatus → its finish reasons; any other end is an `error`."""


class Ledger:
    """The requests of one frontend. Times are monotonic milliseconds."""

    def __init__(self, *, finished_kept: int = FINISHED_KEPT) -> None:
        self._live: dict[int, Entry] = {}
        self._finished: deque[Entry] = deque()
        self._finished_kept = finished_kept
        self._names: dict[str, list[Entry]] = {}
        self._parts: dict[str, tuple[Part, Entry]] = {}
        self._drain = DrainRate()
        self.without_token: dict[str, Part] = {}
        """By internal id the parts that no output came of yet: the hot path's only lookup."""
        self.on_end: Callable[[Entry], None] | None = None
        """Called when a request has ended; again only if it went on and ended once more."""
        self.engine_failure: str | None = None
        """Why the engine is gone; None while it is there."""

    def open(
        self,
        caller: Caller,
        source: Source,
        *,
        external_id: str,
        at: float,
        handle: str | None = None,
        traceparent: str | None = None,
    ) -> Entry:
        """A request begins. `external_id` is vLLM's, `handle` that of the engine port."""
        wished = caller.operation or (external_id if handle is None else handle)
        visible, copies = wished, 1
        while any(other.finished is None for other in self._names.get(visible, ())):
            # Two clients may choose one id; an abort by it must not hit both.
            copies += 1
            visible = f"{wished}#{copies}"
        names = tuple(dict.fromkeys((visible, external_id, handle or visible)))
        entry = Entry(visible, caller, source, at, names=names, traceparent=traceparent)
        self._live[id(entry)] = entry
        self._name(entry)
        return entry

    def register(self, entry: Entry, part: Part) -> None:
        """vLLM's frontend has a part of the request."""
        entry.parts[part.internal_id] = part
        if entry.finished is not None:
            # A later choice, or a later chunk of streamed input.
            entry.finished = entry.reason = None
            if entry in self._finished:
                self._finished.remove(entry)
            else:
                self._name(entry)
            self._live[id(entry)] = entry
        self._parts[part.internal_id] = (part, entry)
        self.without_token[part.internal_id] = part

    def admitted(self, entry: Entry, at: float) -> None:
        """One call of vLLM's `add_request` ended, whichever way."""
        entry.admissions -= 1
        if entry.admissions:
            return
        _tell_settled(entry)
        self._settle(entry, at)

    def first_output(self, internal_id: str, at: float) -> None:
        """The first token of a part came."""
        part = self.without_token.pop(internal_id)
        part.first_token = at
        if part.finished is None:
            part.state, part.position = "running", None
            known = self._parts.get(internal_id)
            if known is not None:
                known[1].tell()

    def end_part(self, internal_id: str, reason: str, at: float, tokens: int | None = None) -> None:
        """A part ended, by the frontend's word: no output of it comes any more."""
        self.without_token.pop(internal_id, None)
        self._end(internal_id, reason, at, tokens)

    def _end(self, internal_id: str, reason: str, at: float, tokens: int | None) -> None:
        known = self._parts.get(internal_id)
        if known is not None:
            part, entry = known
            part.end(reason, at, tokens)
            self._settle(entry, at)

    def close(self, entry: Entry, reason: str, at: float) -> None:
        """The caller is gone: whatever has not ended by now ends with `reason`."""
        for part in entry.live_parts:
            self.without_token.pop(part.internal_id, None)
            part.end(reason, at)
        entry.cancel = None
        self._finish(entry, reason, at)
        _tell_settled(entry)

    def event(self, kind: str, internal_id: str, at: float, extra: Mapping[str, Any]) -> None:
        """A transition in the scheduler (`nnrp_poll`), of another frontend's requests too."""
        if kind in _STARTED:
            self._drain.started(_from_ns(extra.get("since_ns")), at)
        known = self._parts.get(internal_id)
        if known is None:
            return
        part, entry = known
        if kind == "finished":
            # Its last output, which may be its first, can still be on its way.
            reason = _REASONS.get(str(extra.get("status")), "error")
            self._end(internal_id, reason, at, extra.get("tokens"))
            return
        if kind in _STARTED and part.scheduled is None:
            part.scheduled = at
        elif kind == "queued" and part.queued is None:
            part.queued = at
        elif kind == "preempted":
            part.preempted_at(at)
        if part.finished is None and kind in _STATES:
            part.state = _STATES[kind]
            if kind in _STARTED:
                part.position = None
            entry.tell()

    def own_times(self, internal_id: str, times: Mapping[str, Sequence[float]]) -> None:
        """What vLLM noted of a part since its last output, by `queued`, `scheduled`, `preempted`.

        The last word, should a poll have been lost: the hooks read the clock microseconds beside
        it. How the part stands now it does not say, having been on its way.
        """
        known = self._parts.get(internal_id)
        if known is None:
            return
        part, _ = known
        if part.first_token is None:
            part.queued = next(iter(times.get("queued", ())), part.queued)
            part.scheduled = next(iter(times.get("scheduled", ())), part.scheduled)
        part.preempted_at(max(times.get("preempted", ()), default=None))

    def engine_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """The scheduler's present view of parts (`nnrp_state`), by internal id."""
        for internal_id, state in states.items():
            known = self._parts.get(internal_id)
            if known is None or known[0].finished is not None:
                continue
            part = known[0]
            name = str(state.get("state")).partition("(")[0]
            if name in ("waiting", "blocked", "running", "preempted"):
                # What the scheduler does not have is on its way, there or back.
                part.state = name  # type: ignore[assignment]  # one of the literal's values
                part.position = state.get("position")
                known[1].tell()
            part.priority = state.get("priority", part.priority)
            part.engine_tokens = max(part.engine_tokens, state.get("tokens") or 0)
            part.queued = part.queued or _from_ns(state.get("queued_ns"))
            part.scheduled = part.scheduled or _from_ns(state.get("scheduled_ns"))
            part.preempted_at(_from_ns(state.get("preempted_ns")))

    def engine_died(self, reason: str, at: float) -> None:
        """The engine is gone, and everything live with it."""
        self.engine_failure = reason
        for entry in list(self._live.values()):
            self.close(entry, reason, at)

    @property
    def live(self) -> list[Entry]:
        """The requests that have not ended, in the order they came."""
        return list(self._live.values())

    def find(self, name: str) -> Entry | None:
        """The request with that id, else one with that name: live ones first, then the last."""
        found = self._names.get(name, [])
        return max(
            reversed(found),
            key=lambda entry: (entry.id == name, entry.finished is None),
            default=None,
        )

    def owner(self, internal_id: str) -> Entry | None:
        """The request, live or remembered, that an internal id is a part of."""
        known = self._parts.get(internal_id)
        return None if known is None else known[1]

    def snapshot(self, now: float, *, authoritative: bool) -> QueueSnapshot:
        """Every live request: those that run, then those that wait, in the order they will run."""
        operations = [self._told(entry, now) for entry in self._live.values()]
        operations.sort(key=lambda told: -1 if told.position is None else told.position)
        states = [told.state for told in operations]
        return QueueSnapshot(
            operations=tuple(operations),
            running=states.count("running"),
            waiting=sum(state in ("waiting", "blocked", "preempted") for state in states),
            authoritative=authoritative,
            taken_ms=now,
        )

    def _told(self, entry: Entry, now: float) -> QueuedRequest:
        position = entry.position
        return QueuedRequest(
            id=entry.id,
            program=entry.caller.program,
            agent=entry.caller.agent,
            parent=entry.caller.parent,
            source=entry.source,
            state=entry.state,
            queue_delay_ms=entry.queue_delay(now),
            position=position,
            estimate_ms=None if position is None else self._drain.wait(position),
            tokens=entry.tokens,
            priority=entry.priority,
            timings=entry.timings,
        )

    def _settle(self, entry: Entry, at: float) -> None:
        """Finish a request whose parts have all ended, once no further one can come."""
        parts = entry.parts.values()
        if not entry.admissions and parts and not entry.live_parts:
            self._finish(entry, _common(part.reason for part in parts), at)

    def _finish(self, entry: Entry, reason: str, at: float) -> None:
        if self._live.pop(id(entry), None) is None:
            return
        ends = [part.finished for part in entry.parts.values() if part.finished is not None]
        entry.finished, entry.reason = max(ends, default=at), reason
        self._finished.append(entry)
        if self.on_end is not None:
            self.on_end(entry)
        if len(self._finished) > self._finished_kept:
            self._forget(self._finished.popleft())

    def _name(self, entry: Entry) -> None:
        for name in entry.names:
            self._names.setdefault(name, []).append(entry)

    def _forget(self, entry: Entry) -> None:
        for internal_id in entry.parts:
            self._parts.pop(internal_id, None)
            self.without_token.pop(internal_id, None)
        for name in entry.names:
            found = self._names[name]
            found.remove(entry)
            if not found:
                del self._names[name]


def _tell_settled(entry: Entry) -> None:
    waiting, entry.when_settled = entry.when_settled, []
    for tell in waiting:
        tell()


def _common(reasons: Iterable[str | None]) -> str:
    """The reason of several choices: theirs if they agree, else all of them."""
    return "+".join(dict.fromkeys(reason or "unknown" for reason in reasons))


def _from_ns(value: Any) -> float | None:
    return value / 1e6 if value else None
