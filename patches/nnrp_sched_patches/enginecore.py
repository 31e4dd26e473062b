"""Bodies of the methods that E1 adds to `EngineCore`: abort, state, queue, priority, poll.

vLLM calls them on the engine's own thread between two steps, so nothing here needs a lock and
everything here delays the next step. What they return is made encodable, and what they raise is
caught, by `hook_forms.make_added`. Payloads and replies: hooks.md 2.1.
"""

import importlib
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct

from nnrp_sched_patches import engine_queue
from nnrp_sched_patches.engine_names import Told, meant
from nnrp_sched_patches.engine_queue import policy_of, state_of
from nnrp_sched_patches.scheduler_watch import watch_of

ABORT_MARK = "nnrp_abort:"
"""Before the state, the `stop_reason` of outputs that tell another frontend of an abort
(hooks.md 2.2)."""

DEFAULT_LIMIT = 256

_Limit = Annotated[int, Meta(ge=1, le=4096)]
_Priority = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class AbortPayload(Struct, frozen=True):
    """Stop requests by internal id, or those of other frontends by what users call them."""

    ids: list[str]
    client: int = 0
    """`client_index` of the frontend that asks, and that ends its own requests itself."""
    names: list[str] = []
    by: Literal["id", "program", "agent"] = "id"
    """What `names` are."""


class TellPayload(Struct, frozen=True):
    """What users call requests, by internal id."""

    requests: dict[str, Told]


class StatePayload(Struct, frozen=True):
    """Tell of requests by internal id, or of the first `limit` ones."""

    ids: list[str] | None = None
    limit: _Limit = DEFAULT_LIMIT


class PriorityPayload(Struct, frozen=True):
    """New priorities by internal id; lower runs first."""

    ids: dict[str, _Priority]


class PollPayload(Struct, frozen=True):
    """Ask for the transitions after number `since`."""

    since: int = 0
    max: _Limit = DEFAULT_LIMIT
    wait_s: float = 0.0
    client: int = 0


def engine_abort(self: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Body of E1.abort: take requests out of the scheduler at once, and say what they were doing.

    `{"requests": {id: {state, accepted, tokens, engine_status, client, name}}, "mono_ns"}`. The
    caller's own requests get no output from here: its frontend ends them, which keeps vLLM's
    statistics clean (hooks-verified.md 4). An id that is gone, or never was, is `unknown`; `name`
    stands with requests that were found by name, and is theirs.
    """
    asked = msgspec.convert(payload, AbortPayload)
    scheduler = self.scheduler
    names = _elsewhere(scheduler, asked) if asked.names else {}
    ids = dict.fromkeys((*asked.ids, *names))
    found = {request_id: scheduler.requests.get(request_id) for request_id in ids}
    told = {request_id: _standing(request) for request_id, request in found.items()}
    live = {
        request_id: request
        for request_id, request in found.items()
        if request is not None and told[request_id]["state"] != "finished"
    }
    ended: set[str] = set()
    if live:
        done = scheduler.finish_requests(list(live), _aborted_status(next(iter(live.values()))))
        ended.update(map(engine_queue.ended_id, done))
    now_ns = time.monotonic_ns()
    for request_id, standing in told.items():
        standing["accepted"] = request_id in ended
        if request_id in names:
            standing["name"] = names[request_id]
    elsewhere = [live[key] for key in ended if live[key].client_index != asked.client]
    if elsewhere:
        _tell_owners(self, elsewhere, {key: told[key]["state"] for key in ended})
    return {"requests": told, "mono_ns": now_ns}


def engine_tell(self: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Body of E1.tell: remember what users call live requests; `{"requests": how many}`."""
    asked = msgspec.convert(payload, TellPayload)
    live = {one: told for one, told in asked.requests.items() if one in self.scheduler.requests}
    watch_of(self.scheduler).told.update(live)
    return {"requests": len(live)}


def engine_state(self: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Body of E1.state: where requests stand.

    `{"requests": {id: {state, engine_status, client, priority, position, tokens, prompt_tokens,
    queued_ns, scheduled_ns, preempted_ns, preemptions}}, "total", "mono_ns"}`; an unknown id has
    `state` only.
    """
    asked = msgspec.convert(payload, StatePayload)
    scheduler = self.scheduler
    known: dict[str, Any] = scheduler.requests
    if asked.ids is None:
        found = {one.request_id: one for one in engine_queue.listed(scheduler, asked.limit)}
    else:
        found = {request_id: known.get(request_id) for request_id in asked.ids}
    standings = {request_id: _standing(request) for request_id, request in found.items()}
    in_line = [key for key, one in standings.items() if one["state"] in ("waiting", "preempted")]
    places = engine_queue.positions(scheduler, in_line)
    seen = watch_of(scheduler).seen
    for request_id, request in found.items():
        if request is None:
            continue
        times = seen.get(request_id)
        standings[request_id] |= {
            "priority": request.priority,
            "position": places.get(request_id),
            "prompt_tokens": request.num_prompt_tokens,
            "queued_ns": times.queued_ns if times else None,
            "scheduled_ns": times.scheduled_ns if times else None,
            "preempted_ns": times.preempted_ns if times else None,
            "preemptions": times.preemptions if times else 0,
        }
    return {"requests": standings, "total": len(known), "mono_ns": time.monotonic_ns()}


def engine_queue_depths(self: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Body of E1.queue: depths without ids, in constant time; also the engine's heartbeat.

    `{running, waiting, blocked, policy, kv_usage, step_ns, seq, mono_ns}`.
    """
    del payload
    watch = watch_of(self.scheduler)
    return {
        **engine_queue.counts(self.scheduler),
        "policy": policy_of(self.scheduler),
        "kv_usage": engine_queue.kv_usage(self.scheduler),
        "step_ns": watch.step_ns,
        "seq": watch.transitions.seq,
        "mono_ns": time.monotonic_ns(),
    }


def engine_set_priority(self: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Body of E1.set_priority: `{"requests": {id: outcome}, "policy"}`.

    Refused with `policy_fcfs` where the scheduler does not look at priorities.
    """
    asked = msgspec.convert(payload, PriorityPayload)
    outcomes = engine_queue.set_priorities(self.scheduler, asked.ids)
    return {"requests": outcomes, "policy": policy_of(self.scheduler)}


def engine_poll(self: Any, payload: dict[str, Any]) -> dict[str, Any] | Future[dict[str, Any]]:
    """Body of E1.poll: `{seq, events: [[seq, kind, id, mono_ns, extra]], dropped}`, or later.

    `extra` of `queued` is `{client, priority, waiting}`, of `scheduled` and `resumed` `{since_ns}`,
    when it came into the line that it left, of `finished` `{status, tokens}`.
    """
    asked = msgspec.convert(payload, PollPayload)
    transitions = watch_of(self.scheduler).transitions
    return transitions.poll(asked.client, asked.since, asked.max, asked.wait_s)


def _elsewhere(scheduler: Any, asked: AbortPayload) -> dict[str, str]:
    """Internal ids of the other frontends' requests that are meant, with their names."""
    others = [
        key for key, request in scheduler.requests.items() if request.client_index != asked.client
    ]
    return meant(others, watch_of(scheduler).told, asked.names, asked.by)


def _standing(request: Any) -> dict[str, Any]:
    if request is None:
        return {"state": "unknown", "tokens": None, "engine_status": None, "client": None}
    status = request.status.name
    return {
        "state": state_of(status),
        "tokens": request.num_output_tokens,
        "engine_status": status,
        "client": request.client_index,
    }


def _aborted_status(request: Any) -> Any:
    """`FINISHED_ABORTED` of the enum that this vLLM has: nothing is imported on this path."""
    statuses = cast(Any, type(request.status))
    return statuses.FINISHED_ABORTED


def _tell_owners(engine: Any, requests: Sequence[Any], states: Mapping[str, str]) -> None:
    """Give aborted requests their last output, so that the frontends they are from let them go.

    With the state that each was found in, which becomes the owner's receipt.

    As vLLM's `_send_abort_outputs_to_client`, but marked: without its first token a request would
    put the host's uptime into the owner's statistics (hooks.md 2.2), and the mark lets F4 see it.
    """
    messages = importlib.import_module("vllm.v1.engine")
    owners: defaultdict[int, list[Any]] = defaultdict(list)
    for request in requests:
        owners[request.client_index].append(
            messages.EngineCoreOutput(
                request_id=request.request_id,
                new_token_ids=[],
                finish_reason=messages.FinishReason.ABORT,
                stop_reason=f"{ABORT_MARK}{states[request.request_id]}",
            )
        )
    for client, outputs in owners.items():
        gone = {output.request_id for output in outputs}
        engine.output_queue.put_nowait(
            (client, messages.EngineCoreOutputs(outputs=outputs, finished_requests=gone))
        )
