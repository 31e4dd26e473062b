"""What happened to the engine's requests, in order, for clients that ask when they like.

Recording costs an assignment in a ring; a slow or absent client costs no more. A client that asks
before anything happened is answered when something does, or by a timer: vLLM lets the reply of a
utility call be a future, resolved from any thread (hooks-verified.md C2, 2).

Only the engine's thread records and polls. The timer thread shares the table of waiting polls with
it, and nothing else; it is started by the first poll that waits, never before (forks).
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal

from msgspec import Struct

Kind = Literal["queued", "scheduled", "resumed", "preempted", "finished"]

Event = tuple[int, Kind, str, int, dict[str, Any] | None]
"""Sequence number, what happened, internal request id, monotonic clock in ns, particulars."""

Batch = dict[str, Any]
"""Answer to a poll: `seq` to ask with next, `events`, and how many the client missed, `dropped`."""

CAPACITY = 8192
"""Transitions kept. A request makes three or more, so this is some thousand requests."""

MAX_WAIT_S = 60.0

LINGER_S = 30.0
"""How long the timer thread stays without a poll to wait for."""


class _Poll(Struct, frozen=True):
    future: Future[Batch]
    since: int
    limit: int
    deadline: float


class Transitions:
    """A ring of transitions and the clients that wait for the next one."""

    def __init__(
        self,
        capacity: int = CAPACITY,
        *,
        linger_s: float = LINGER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ring: list[Event | None] = [None] * capacity
        self._capacity = capacity
        self._seq = 0
        self._linger_s = linger_s
        self._clock = clock
        self._polls: dict[int, _Poll] = {}
        self._changed = threading.Condition()
        self._timer: threading.Thread | None = None
        self._wakes_at = 0.0

    @property
    def seq(self) -> int:
        """Number of the newest transition; 0 before the first."""
        return self._seq

    @property
    def waiting(self) -> int:
        """How many clients wait for the next transition."""
        return len(self._polls)

    def record(
        self, kind: Kind, request_id: str, mono_ns: int, extra: dict[str, Any] | None = None
    ) -> None:
        """Note a transition. Clients that wait hear of it with the next `deliver`."""
        self._seq += 1
        self._ring[self._seq % self._capacity] = (self._seq, kind, request_id, mono_ns, extra)

    def deliver(self) -> None:
        """Answer every client that waits."""
        if not self._polls:
            return
        with self._changed:
            polls = list(self._polls.values())
            self._polls.clear()
        for poll in polls:
            poll.future.set_result(self._batch(poll.since, poll.limit))

    def poll(self, client: int, since: int, limit: int, wait_s: float) -> Batch | Future[Batch]:
        """The transitions after number `since`, `limit` at most; oldest first.

        Without any, a future that has them within `wait_s` seconds, or an empty batch then. A
        client has one poll waiting: the one before is answered, empty.
        """
        batch = self._batch(since, limit)
        wait_s = min(wait_s, MAX_WAIT_S)
        at_once = bool(batch["events"]) or since > self._seq or wait_s <= 0
        poll = _Poll(Future(), since, limit, self._clock() + wait_s)
        with self._changed:
            before = self._polls.pop(client, None)
            if not at_once:
                self._polls[client] = poll
                self._time(poll.deadline)
        if before is not None:
            before.future.set_result(_nothing(before.since))
        return batch if at_once else poll.future

    def _batch(self, since: int, limit: int) -> Batch:
        # A number beyond ours is from another engine's life: the client starts again from ours.
        after = min(max(since, 0), self._seq)
        oldest = max(self._seq - self._capacity, 0)
        dropped = max(oldest - after, 0)
        first = max(after, oldest) + 1
        last = min(self._seq, first + limit - 1)
        events = [self._ring[number % self._capacity] for number in range(first, last + 1)]
        return {"seq": last, "events": events, "dropped": dropped}

    def _time(self, deadline: float) -> None:
        """See that the timer looks again by `deadline`; the lock is held."""
        if self._timer is None:
            self._wakes_at = deadline
            self._timer = threading.Thread(
                target=self._watch_deadlines, name="nnrp-sched poll timer", daemon=True
            )
            self._timer.start()
        elif deadline < self._wakes_at:
            self._changed.notify()

    def _watch_deadlines(self) -> None:
        while True:
            due = self._due()
            if due is None:
                return
            for poll in due:
                poll.future.set_result(_nothing(poll.since))

    def _due(self) -> list[_Poll] | None:
        """Wait for polls whose time is over and take them; None ends the timer thread."""
        with self._changed:
            while True:
                now = self._clock()
                late = [client for client, poll in self._polls.items() if poll.deadline <= now]
                if late:
                    return [self._polls.pop(client) for client in late]
                deadlines = [poll.deadline for poll in self._polls.values()]
                self._wakes_at = min(deadlines, default=now + self._linger_s)
                woken = self._changed.wait(self._wakes_at - now)
                if not (woken or deadlines or self._polls):
                    self._timer = None
                    return None


def _nothing(since: int) -> Batch:
    return {"seq": since, "events": [], "dropped": 0}
