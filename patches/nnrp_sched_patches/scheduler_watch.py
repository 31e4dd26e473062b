"""Watches one scheduler: the bodies of the E2 hooks, and what they learn (hooks.md 2.1).

Every body records transitions only, never tokens. Natural ends come by `_free_request` alone, ends
from outside by `finish_requests` and then `_free_request` (hooks-verified.md C1): the first one
told counts. Timestamps are of the clock that vLLM's own events use, CLOCK_MONOTONIC.
"""

import time
import weakref
from collections.abc import Generator, Mapping
from typing import Any

from nnrp_sched_patches.engine_names import Told
from nnrp_sched_patches.engine_queue import containers, ended_id
from nnrp_sched_patches.transitions import Kind, Transitions

_STEP_WEIGHT = 1 / 8
"""Of the newest step in the average."""

_STRAYS = 1024
"""So many more requests than the scheduler has are kept before the gone ones are looked for."""


class Seen:
    """What is known of a request in the scheduler beyond its own attributes."""

    __slots__ = ("preempted", "preempted_ns", "preemptions", "queued_ns", "scheduled_ns")

    def __init__(self, queued_ns: int | None) -> None:
        self.queued_ns = queued_ns
        """None when it was there before the hooks were."""
        self.scheduled_ns: int | None = None
        """When it ran first."""
        self.preemptions = 0
        self.preempted_ns: int | None = None
        """When it was preempted last."""
        self.preempted = False
        """Whether it waits to be resumed."""


class SchedulerWatch:
    """The transitions of one scheduler, the times of its live requests, and its step time."""

    def __init__(self) -> None:
        self.transitions = Transitions()
        self.seen: dict[str, Seen] = {}
        self.told: dict[str, Told] = {}
        """What users call live requests, where their frontends said so."""
        self.step_ns: float | None = None
        """Moving average of the time from one step to the next while there is work."""
        self._step_began_ns: int | None = None

    def queued(self, scheduler: Any, request: Any, now_ns: int) -> None:
        """A new request stands in a queue."""
        requests = scheduler.requests
        if len(requests) == 1:
            # The engine may have been idle until now: no step.
            self._step_began_ns = None
        if len(self.seen) > len(requests) + _STRAYS:
            self.seen = {key: seen for key, seen in self.seen.items() if key in requests}
            self.told = {key: told for key, told in self.told.items() if key in requests}
        self.seen[request.request_id] = Seen(now_ns)
        extra = {
            "client": request.client_index,
            "priority": request.priority,
            "waiting": sum(map(len, containers(scheduler))),
        }
        self.transitions.record("queued", request.request_id, now_ns, extra)
        self.transitions.deliver()

    def stepped(self, scheduler: Any, output: Any, began_ns: int) -> None:
        """The scheduler decided on a step, having begun to at `began_ns`."""
        if output.total_num_scheduled_tokens:
            if self._step_began_ns is not None:
                step_ns = began_ns - self._step_began_ns
                if self.step_ns is None:
                    self.step_ns = step_ns
                else:
                    self.step_ns += (step_ns - self.step_ns) * _STEP_WEIGHT
            self._step_began_ns = began_ns
        before = self.transitions.seq
        for request_id in output.preempted_req_ids or ():
            self._preempted(scheduler, request_id, began_ns)
        for request_id in output.scheduled_cached_reqs.resumed_req_ids or ():
            self._runs(request_id, began_ns, "resumed")
        for new in output.scheduled_new_reqs:
            self._runs(new.req_id, began_ns, "scheduled")
        if self.transitions.seq != before:
            self.transitions.deliver()

    def finished(self, request_id: str, status: str, tokens: int | None) -> None:
        """A request left the scheduler with `status`, the name of a `RequestStatus`."""
        self.seen.pop(request_id, None)
        self.told.pop(request_id, None)
        extra = {"status": status, "tokens": tokens}
        self.transitions.record("finished", request_id, time.monotonic_ns(), extra)
        self.transitions.deliver()

    def _preempted(self, scheduler: Any, request_id: str, now_ns: int) -> None:
        if request_id not in scheduler.requests:
            # Preempted between two steps and finished since: its end is told already.
            return
        seen = self._seen(request_id)
        seen.preempted = True
        seen.preemptions += 1
        seen.preempted_ns = now_ns
        self.transitions.record("preempted", request_id, now_ns)

    def _runs(self, request_id: str, now_ns: int, kind: Kind) -> None:
        seen = self._seen(request_id)
        if seen.preempted:
            # The newer model runner gets resumed requests among the new ones.
            kind = "resumed"
            seen.preempted = False
        if seen.scheduled_ns is None:
            seen.scheduled_ns = now_ns
        since_ns = seen.queued_ns if kind == "scheduled" else seen.preempted_ns
        self.transitions.record(kind, request_id, now_ns, {"since_ns": since_ns})

    def _seen(self, request_id: str) -> Seen:
        found = self.seen.get(request_id)
        if found is None:
            found = self.seen[request_id] = Seen(None)
        return found


_watches: "weakref.WeakKeyDictionary[Any, SchedulerWatch]" = weakref.WeakKeyDictionary()
"""By scheduler. Made by the first hook that meets it, so in the process that runs it."""


def watch_of(scheduler: Any) -> SchedulerWatch:
    """What the hooks know of a scheduler."""
    watch = _watches.get(scheduler)
    if watch is None:
        watch = _watches[scheduler] = SchedulerWatch()
    return watch


def watch_add_request(
    scheduler: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[None, Any, None]:
    """Body of E2.queued, around `Scheduler.add_request(request)`."""
    request = args[0] if args else kwargs["request"]
    yield
    # The next piece of a streaming input comes this way too, as an object that is dropped again.
    if scheduler.requests.get(request.request_id) is request:
        watch_of(scheduler).queued(scheduler, request, time.monotonic_ns())


def watch_schedule(
    scheduler: Any, _args: tuple[Any, ...], _kwargs: Mapping[str, Any]
) -> Generator[None, Any, None]:
    """Body of E2.step, around `Scheduler.schedule(...)`.

    The clock is read before it, as for vLLM's own event (hooks-verified.md 3).
    """
    began_ns = time.monotonic_ns()
    output = yield
    watch_of(scheduler).stepped(scheduler, output, began_ns)


def watch_finish_requests(
    scheduler: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[None, Any, None]:
    """Body of E2.ended, around `Scheduler.finish_requests(request_ids, finished_status)`.

    Finds what ended without a `_free_request`, as in a scheduler that has its own.
    """
    ended = yield
    watch = watch_of(scheduler)
    for item in ended or ():
        request_id = ended_id(item)
        if request_id in watch.seen:
            status = args[1] if len(args) > 1 else kwargs["finished_status"]
            watch.finished(request_id, status.name, getattr(item, "num_output_tokens", None))


def watch_free_request(
    scheduler: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[None, Any, None]:
    """Body of E2.finished, around `Scheduler._free_request(request, ...)`: every end passes it."""
    request = args[0] if args else kwargs["request"]
    yield
    watch_of(scheduler).finished(request.request_id, request.status.name, request.num_output_tokens)
