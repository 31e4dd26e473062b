"""A stand-in for vLLM's frontend: AsyncLLM and OutputProcessor as far as our hooks go.

Registration before the send, ends by outputs, aborts by internal or parent id: as in vLLM 0.32.
"""

import asyncio
import enum
import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import anyio

from nnrp_sched_patches import frontend, vllm_aborts
from nnrp_sched_patches.hook_forms import Switch, make_around, make_around_async, make_before_async
from nnrp_sched_patches.ledger import Ledger

Reply = Callable[[dict[str, Any]], Any]


class FinishReason(enum.IntEnum):
    """vLLM's."""

    STOP = 0
    LENGTH = 1
    ABORT = 2

    def __str__(self) -> str:
        return self.name.lower()


class EventType(enum.IntEnum):
    """vLLM's EngineCoreEventType."""

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


class Processor:
    """OutputProcessor."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}
        self.parent_requests: dict[str, Any] = {}
        self.external_req_ids: dict[str, list[str]] = {}
        self.ends: list[str] = []
        """Internal ids whose callers got a last output for an abort."""

    def add_request(self, request: Any, prompt: Any, parent_req: Any = None, *_: Any) -> None:
        if request.request_id in self.request_states:
            return
        self.external_req_ids.setdefault(request.external_req_id, []).append(request.request_id)
        tokens: list[int] = []
        detokenizer = SimpleNamespace(tokens=tokens, num_output_tokens=tokens.__len__)
        self.request_states[request.request_id] = SimpleNamespace(
            parent_req=parent_req, detokenizer=detokenizer
        )
        if parent_req is not None:
            self.parent_requests[parent_req.request_id] = parent_req

    def process_outputs(
        self, engine_core_outputs: list[Any], engine_core_timestamp: float | None = None
    ) -> Any:
        stopped: list[str] = []
        for output in engine_core_outputs:
            state = self.request_states.get(output.request_id)
            if state is None:
                continue
            state.detokenizer.tokens.extend(output.new_token_ids)
            if output.finish_reason is not None or 99 in output.new_token_ids:
                del self.request_states[output.request_id]
                if output.finish_reason is None:
                    stopped.append(output.request_id)
        return SimpleNamespace(request_outputs=[], reqs_to_abort=stopped)

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:
        gone: list[str] = []
        if not internal:
            known = self.external_req_ids
            request_ids = [one for name in request_ids for one in known.pop(name, ())]
        for request_id in request_ids:
            state = self.request_states.pop(request_id, None)
            parent = self.parent_requests.get(request_id)
            if state is not None:
                self.ends.append(request_id)
                gone.append(request_id)
                if state.parent_req is not None:
                    state.parent_req.child_requests.discard(request_id)
            elif parent is not None:
                gone += self.abort_requests(list(parent.child_requests), internal=True)
                self.parent_requests.pop(request_id, None)
        return gone


class Frontend:
    """AsyncLLM over a `Processor`, with an engine that `replies` stands for."""

    def __init__(self) -> None:
        self.output_processor: Any = Processor()
        self.engine_core = self
        self.client_index = 0
        self.client_count = 1
        self.observability_config = SimpleNamespace(otlp_traces_endpoint=None)
        self.traced: dict[str, dict[str, str] | None] = {}
        """The trace headers that requests came with, by external id."""
        self.errored = False
        self.output_handler = asyncio.get_running_loop().create_future()
        self.replies: dict[str, Reply] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.preparing: anyio.Event | None = None
        """While it is set to an event, a request waits for it before it is registered."""
        self.takes_back = False
        """Whether an admission that fails aborts what it registered: vLLM from 0.32 on, n > 1."""
        self.sending: anyio.Event | None = None
        """While it is set to an event, the send to the engine waits for it."""
        self.public_aborts: list[tuple[str, ...]] = []
        self._numbers = itertools.count()

    async def add_request(
        self,
        request_id: str,
        n: int = 1,
        priority: int = 0,
        *,
        trace_headers: dict[str, str] | None = None,
    ) -> list[str]:
        self.traced[request_id] = trace_headers
        if n < 1:
            raise ValueError("refused")
        if self.preparing is not None:
            await self.preparing.wait()
        internal = f"{request_id}-{next(self._numbers):08}"
        children = {f"{index}_{internal}" for index in range(n)}
        parent = SimpleNamespace(request_id=internal, child_requests=children)
        ids = [internal] if n == 1 else sorted(children)
        for one in ids:
            request = SimpleNamespace(request_id=one, external_req_id=request_id, priority=priority)
            self.output_processor.add_request(request, None, None if n == 1 else parent)
        try:
            if self.sending is not None:
                await self.sending.wait()
        except BaseException:
            if self.takes_back:
                await self.abort(internal, internal=True)
            raise
        return ids

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        ids = (request_id,) if isinstance(request_id, str) else tuple(request_id)
        self.public_aborts.append(ids)
        self.output_processor.abort_requests(self.public_aborts[-1], internal)

    async def call_utility_async(self, method: str, payload: dict[str, Any]) -> Any:
        self.calls.append((method, payload))
        reply = self.replies[method](payload)
        return await reply if asyncio.isfuture(reply) else reply

    def die(self) -> None:
        """As when the engine process is gone."""
        self.errored = True
        self.output_handler.set_result(None)

    @property
    def ledger(self) -> Ledger:
        """The ledger that the hooks fill."""
        return frontend.ledger_of(self.output_processor)


def hooked() -> tuple[Frontend, list[Switch]]:
    """A frontend with our hooks in its classes, and their switches."""
    switches = [Switch(name) for name in ("F2", "F3", "F4", "F5", "F7")]
    slots = {
        name: make_around(Processor, vars(Processor)[name], getattr(frontend, name), switch)
        for name, switch in zip(
            ("add_request", "process_outputs", "abort_requests"), switches[1:4], strict=True
        )
    }
    wrapped = make_around_async(
        Frontend, vars(Frontend)["add_request"], frontend.admission, switches[0]
    )
    abort = make_before_async(
        Frontend, vars(Frontend)["abort"], vllm_aborts.receipt_first, switches[4]
    )
    slots_of_llm = {"add_request": wrapped, "abort": abort}
    made = cast(Frontend, type("HookedFrontend", (Frontend,), slots_of_llm)())
    made.output_processor = type("HookedProcessor", (Processor,), slots)()
    return made, switches


def output(
    internal_id: str, *tokens: int, finish: FinishReason | None = None, **members: Any
) -> Any:
    """An EngineCoreOutput."""
    made = SimpleNamespace(
        request_id=internal_id,
        new_token_ids=list(tokens),
        finish_reason=finish,
        stop_reason=None,
        events=None,
    )
    made.__dict__.update(members)
    return made


def event(kind: EventType, seconds: float) -> Any:
    """An EngineCoreEvent."""
    return SimpleNamespace(type=kind, timestamp=seconds)
