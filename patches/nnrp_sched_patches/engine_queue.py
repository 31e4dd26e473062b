"""What stands in a scheduler's queues, read between two steps. Pure over a scheduler-like object.

Nothing here changes a request but `set_priorities`. Waiting requests stand in several containers
whose names differ by family; `CONTAINERS` has them all, and a scheduler has those of its family.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Literal

EngineState = Literal["waiting", "blocked", "running", "preempted", "finished", "unknown"]
"""State of a request in the engine, as receipts and queue views tell it (hooks.md 2.2)."""

PriorityOutcome = Literal["applied", "not_waiting", "unknown", "policy_fcfs"]

CONTAINERS = ("kv_holding_waiting", "skipped_waiting", "waiting")
"""Attributes of a scheduler that hold waiting requests, in the order it looks at them."""

SET_ASIDE = ("deferred_waiting", "skipped_waiting")
"""Attributes that count the waiting requests which it passed over last time."""

POSITION_LIMIT = 1024
"""Positions are told up to this one: an ordered walk of a priority queue costs the engine time."""

_STATES: Mapping[str, EngineState] = {
    "WAITING": "waiting",
    "RUNNING": "running",
    "PREEMPTED": "preempted",
}


def state_of(status_name: str) -> EngineState:
    """The state that the name of a `RequestStatus` of any family stands for."""
    if status_name.startswith("WAITING_FOR_"):
        return "blocked"
    if status_name.startswith("FINISHED_"):
        return "finished"
    return _STATES.get(status_name, "unknown")


def policy_of(scheduler: Any) -> str:
    """The scheduling policy: `fcfs` or `priority`."""
    return str(getattr(scheduler.policy, "value", scheduler.policy))


def containers(scheduler: Any) -> list[Any]:
    """The scheduler's waiting containers, in the order it looks at them."""
    return [getattr(scheduler, name) for name in CONTAINERS if hasattr(scheduler, name)]


def in_line(scheduler: Any) -> Iterator[Any]:
    """The waiting requests in the order in which the scheduler will consider them.

    Up to 0.30 the priority policy compares the heads of both containers; else one container comes
    wholly before the other.
    """
    queues = containers(scheduler)
    if policy_of(scheduler) == "priority" and hasattr(scheduler, "skipped_waiting"):
        return heapq.merge(*queues)
    return chain.from_iterable(queues)


def positions(scheduler: Any, wanted: Collection[str]) -> dict[str, int]:
    """Place in line of the `wanted` ids, 0 for the next to be scheduled.

    Blocked requests have none and do not count: they are passed over. Nor has a request beyond
    `POSITION_LIMIT`.
    """
    left, places = set(wanted), dict[str, int]()
    line = (one for one in in_line(scheduler) if state_of(one.status.name) != "blocked")
    for place, request in enumerate(islice(line, POSITION_LIMIT) if left else ()):
        if request.request_id in left:
            places[request.request_id] = place
            left.discard(request.request_id)
            if not left:
                break
    return places


def counts(scheduler: Any) -> dict[str, int]:
    """How many requests run, wait in line, and are set aside, without a look at any of them."""
    waiting = sum(map(len, containers(scheduler)))
    aside = sum(len(getattr(scheduler, name, ())) for name in SET_ASIDE)
    return {"running": len(scheduler.running), "waiting": waiting - aside, "blocked": aside}


def ended_id(item: Any) -> str:
    """The request id of one item that `finish_requests` returned: a request, to 0.22 a pair."""
    request_id = getattr(item, "request_id", None)
    return str(item[0] if request_id is None else request_id)


def listed(scheduler: Any, limit: int) -> list[Any]:
    """The first `limit` requests: those that run, then those that wait, in order."""
    return list(islice(chain(scheduler.running, in_line(scheduler)), limit))


def kv_usage(scheduler: Any) -> float:
    """The part of the KV cache's blocks that is in use, 0 to 1."""
    return float(scheduler.kv_cache_manager.usage)


def set_priorities(scheduler: Any, priorities: Mapping[str, int]) -> dict[str, PriorityOutcome]:
    """Give waiting requests new priorities and their new places; lower runs first.

    Taken out and put in again where they stand: a changed number alone would break the heap.
    """
    outcomes = dict[str, PriorityOutcome]()
    homes = _homes(scheduler) if policy_of(scheduler) == "priority" else None
    moved: dict[int, list[Any]] = {}
    for request_id in priorities:
        request = scheduler.requests.get(request_id)
        if request is None:
            outcomes[request_id] = "unknown"
        elif homes is None:
            outcomes[request_id] = "policy_fcfs"
        elif id(request) not in homes:
            outcomes[request_id] = "not_waiting"
        else:
            outcomes[request_id] = "applied"
            moved.setdefault(homes[id(request)], []).append(request)
    for home, requests in moved.items():
        container = containers(scheduler)[home]
        # One pass and one heap for all: removing one by one would take as long for each.
        container.remove_requests(requests)
        for request in requests:
            request.priority = priorities[request.request_id]
            container.add_request(request)
    return outcomes


def _homes(scheduler: Any) -> dict[int, int]:
    """The container of each waiting request object, by identity: equality is vLLM's affair."""
    return {
        id(request): home
        for home, container in enumerate(containers(scheduler))
        for request in container
    }
