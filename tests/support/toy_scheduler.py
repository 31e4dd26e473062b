"""A stand-in for vLLM's scheduler in the engine process, small enough to read, with its hooks on.

What differs between families is an argument: the containers, and what `finish_requests` returns.
"""

import enum
import heapq
import itertools
import queue
import types
from collections import deque
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from nnrp_sched_patches.engine_hooks import ENGINE_HOOKS
from nnrp_sched_patches.hook_forms import ABSENT, MAKERS, Switch

Status = enum.IntEnum(
    "Status",
    "WAITING WAITING_FOR_REMOTE_KVS RUNNING PREEMPTED FINISHED_STOPPED FINISHED_ABORTED",
)
Policy = enum.Enum("Policy", {"FCFS": "fcfs", "PRIORITY": "priority"})

_arrivals = itertools.count()


class Request:
    """A request as the scheduler holds it."""

    def __init__(self, request_id: str, priority: int = 0, client_index: int = 0) -> None:
        self.request_id = request_id
        self.priority = priority
        self.client_index = client_index
        self.arrival = next(_arrivals)
        self.status: Any = Status["WAITING"]
        self.num_prompt_tokens = 7
        self.num_output_tokens = 0

    def __lt__(self, other: "Request") -> bool:
        return (self.priority, self.arrival) < (other.priority, other.arrival)


class Fcfs(deque[Request]):
    def add_request(self, request: Request) -> None:
        self.append(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = set(requests)
        kept = [request for request in self if request not in gone]
        self.clear()
        self.extend(kept)


class Priority:
    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add_request(self, request: Request) -> None:
        heapq.heappush(self._heap, request)

    def popleft(self) -> Request:
        return heapq.heappop(self._heap)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = set(requests)
        self._heap = [request for request in self._heap if request not in gone]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._heap))


class Scheduler:
    """One token a step for each running request."""

    def __init__(self, policy: str = "fcfs", *, slots: int = 2, old: bool = False) -> None:
        self.policy = Policy(policy)
        self.slots = slots
        self.old = old
        make = Priority if policy == "priority" else Fcfs
        self.waiting: Any = make()
        if old:
            self.skipped_waiting: Any = make()
        else:
            self.kv_holding_waiting: Any = make()
            self.deferred_waiting: set[Request] = set()
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.kv_cache_manager = types.SimpleNamespace(usage=0.25)
        self.to_preempt = 0
        self._preempted: set[str] = set()

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            self.requests[request.request_id] = request
            self.waiting.add_request(request)

    def preempt(self) -> None:
        """Put the newest running request back in line."""
        request = self.running.pop()
        request.status = Status["PREEMPTED"]
        self._preempted.add(request.request_id)
        self.waiting.add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        new: list[Any] = []
        resumed: set[str] = set()
        preempted, self._preempted = self._preempted, set()
        while len(self.waiting) and len(self.running) < self.slots and not throttle_prefills:
            request = self.waiting.popleft()
            if request.status.name == "PREEMPTED":
                resumed.add(request.request_id)
            else:
                new.append(types.SimpleNamespace(req_id=request.request_id))
            request.status = Status["RUNNING"]
            self.running.append(request)
        return types.SimpleNamespace(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=types.SimpleNamespace(resumed_req_ids=resumed),
            preempted_req_ids=preempted,
            total_num_scheduled_tokens=len(self.running),
        )

    def update_from_output(self, stop: Iterable[str] = ()) -> None:
        """A token for each that runs; those named in `stop` have their last."""
        for request in list(self.running):
            request.num_output_tokens += 1
            if request.request_id in stop:
                self.running.remove(request)
                request.status = Status["FINISHED_STOPPED"]
                self._free_request(request)

    def finish_requests(self, request_ids: Iterable[str], finished_status: Any) -> list[Any]:
        ended: list[Request] = []
        for request_id in set(request_ids) & set(self.requests):
            request = self.requests[request_id]
            ended.append(request)
            if request in self.running:
                self.running.remove(request)
            for container in (self.waiting, getattr(self, "skipped_waiting", None)):
                if container is not None:
                    container.remove_requests([request])
            request.status = finished_status
            self._free_request(request)
        return [(one.request_id, one.client_index) if self.old else one for one in ended]

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> None:
        del self.requests[request.request_id]


def hooked(switch: Switch | None = None) -> type[Scheduler]:
    """A scheduler class of its own with the E2 hooks of the tables in it."""
    made = type("Hooked", (Scheduler,), {})
    for hook in ENGINE_HOOKS:
        owner, _, method = hook.seam.name.rpartition(".")
        if owner == "Scheduler":
            raw = vars(Scheduler)[method]
            wrapped = MAKERS[hook.form](made, raw, _body(hook.body), switch or Switch(hook.name))
            setattr(made, method, wrapped)
    return made


class Engine:
    """An `EngineCore`: the added methods of the tables over a scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.output_queue: queue.Queue[Any] = queue.Queue()

    def call(self, method: str, **payload: Any) -> Any:
        """Call `nnrp_<method>` as vLLM's utility RPC would."""
        (hook,) = [hook for hook in ENGINE_HOOKS if hook.name == f"E1.{method}"]
        added = MAKERS[hook.form](type(self), ABSENT, _body(hook.body), Switch(hook.name))
        return added(self, payload)


def _body(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)
