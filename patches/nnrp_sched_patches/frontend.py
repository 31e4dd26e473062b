"""Bodies of the hooks in vLLM's frontend: they tell the ledger what happens (hooks.md 2.7).

F2 admission, F3 registration, F4 outputs, F5 local aborts. The ledger of a frontend hangs on its
OutputProcessor, which all of them reach.
"""

import asyncio
import time
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextvars import ContextVar
from typing import Any

import anyio

from nnrp_sched.engine.records import AbortReceipt, RequestState
from nnrp_sched_patches.enginecore import ABORT_MARK
from nnrp_sched_patches.ledger import Ledger
from nnrp_sched_patches.ledger_records import Entry, Part
from nnrp_sched_patches.origin import current_origin
from nnrp_sched_patches.telling import tell

_ledgers: "weakref.WeakKeyDictionary[Any, Ledger]" = weakref.WeakKeyDictionary()
_TRACE_HEADERS = 6
"""Where `trace_headers` stands among the arguments of `add_request`, after `self`."""
_ADMITTED: ContextVar[Entry | None] = ContextVar("nnrp_sched_admitted", default=None)


def ledger_of(processor: Any) -> Ledger:
    """The ledger of the frontend that a vLLM OutputProcessor belongs to."""
    ledger = _ledgers.get(processor)
    if ledger is None:
        ledger = _ledgers[processor] = Ledger()
    return ledger


def admission_here() -> Entry | None:
    """The request whose `add_request` the present task is in, or was started by."""
    return _ADMITTED.get()


def now_ms() -> float:
    """The clock of the ledger; the engine process on the same host has the same."""
    return time.monotonic_ns() / 1e6


def admission(
    engine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[BaseException | None], Awaitable[None]]:
    """Body of F2, `AsyncLLM.add_request`: an entry in the ledger, a trace, no leak if it fails."""
    ledger = ledger_of(engine.output_processor)
    origin = current_origin()
    # Before there is an entry: should it fail, none may stay open.
    _hand_over(origin.traceparent, engine, args, kwargs)
    entry = origin.entry
    if entry is None:
        entry = ledger.open(
            origin.caller,
            origin.source,
            external_id=str(_argument(args, kwargs, 0, "request_id")),
            at=origin.arrived or now_ms(),
            traceparent=origin.traceparent,
        )
        entry.operation = origin.operation
    entry.admissions += 1
    token = _ADMITTED.set(entry)

    async def leave(error: BaseException | None) -> None:
        left = isinstance(error, asyncio.CancelledError)
        try:
            if error is not None:
                entry.abort_cause = entry.abort_cause or ("client_gone" if left else "failed")
                await _release(engine, entry)
        finally:
            _ADMITTED.reset(token)
            ledger.admitted(entry, now_ms())
            if error is None:
                tell(engine, entry)
            if not entry.parts and origin.entry is None:
                # Refused; or its input is a stream that has not begun, and F3 takes it up again.
                if left:
                    entry.receipt = AbortReceipt(entry.id, "admitting", True, True, 0, 0.0)
                ledger.close(entry, "abort" if left else "refused", now_ms())

    return leave


def _hand_over(
    traceparent: str | None, engine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Give vLLM the trace of a request that its caller gave none.

    Only where vLLM traces at all: else it would warn and drop it (hooks.md 2.5).
    """
    if traceparent is None or _argument(args, kwargs, _TRACE_HEADERS, "trace_headers") is not None:
        return
    traces = engine.observability_config.otlp_traces_endpoint is not None
    if traces and len(args) <= _TRACE_HEADERS:
        kwargs["trace_headers"] = {"traceparent": traceparent}


async def _release(engine: Any, entry: Entry) -> None:
    """Take back what was registered before the admission failed.

    vLLM registers, then awaits the send to the engine: cancelled in between it keeps the request
    for ever (vLLM issue 57061).
    """
    handles = {part.handle for part in entry.live_parts}
    if handles:
        # A task of its own: under a second cancellation it still goes through.
        abort = asyncio.ensure_future(engine.abort(list(handles), internal=True))
        with anyio.CancelScope(shield=True):
            await asyncio.shield(abort)


def add_request(
    processor: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[None, Any, None]:
    """Body of F3, `OutputProcessor.add_request`: the internal ids, each choice by its own."""
    request = _argument(args, kwargs, 0, "request")
    internal_id: str = request.request_id
    # A further chunk of streamed input comes with an id that is there already.
    update = internal_id in processor.request_states
    yield
    state = processor.request_states.get(internal_id)
    if update or state is None:
        return
    ledger, at = ledger_of(processor), now_ms()
    entry = _ADMITTED.get()
    if entry is None:
        external_id = request.external_req_id or internal_id
        entry = ledger.open(current_origin().caller, "http", external_id=external_id, at=at)
    parent = state.parent_req
    part = Part(
        internal_id=internal_id,
        handle=internal_id if parent is None else parent.request_id,
        registered=at,
        priority=request.priority,
        count=None if state.detokenizer is None else state.detokenizer.num_output_tokens,
    )
    ledger.register(entry, part)


def process_outputs(
    processor: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[None, Any, None]:
    """Body of F4, `OutputProcessor.process_outputs`: first tokens and ends.

    Once per engine step: one dict lookup and two attributes for an output that is neither.
    """
    ledger = ledger_of(processor)
    without_token = ledger.without_token
    ended: list[Any] = []
    elsewhere: dict[str, RequestState] = {}
    for output in _argument(args, kwargs, 0, "engine_core_outputs"):
        if output.events:
            _own_times(ledger, output)
        if output.request_id in without_token:
            _first(processor, ledger, output, _timestamp(args, kwargs))
        if output.finish_reason is not None:
            ended.append(output)
            state = _aborted_elsewhere(output)
            if state is not None:
                elsewhere[output.request_id] = state
                # Ours, and nothing for the client's answer.
                output.stop_reason = None
    result = yield
    if ended or result.reqs_to_abort:
        at = _timestamp(args, kwargs)
        for output in ended:
            # A streamed input's request goes on after each of its chunks' ends.
            if output.request_id not in processor.request_states:
                ledger.end_part(output.request_id, str(output.finish_reason), at)
        for internal_id in result.reqs_to_abort:
            # The frontend found a stop string that the engine does not know.
            ledger.end_part(internal_id, "stop", at)
    for internal_id, state in elsewhere.items():
        owner = ledger.owner(internal_id)
        if owner is not None:
            owner.aborted_elsewhere(state)


def _own_times(ledger: Ledger, output: Any) -> None:
    times: defaultdict[str, list[float]] = defaultdict(list)
    for event in output.events:
        times[event.type.name.lower()].append(event.timestamp * 1e3)
    ledger.own_times(output.request_id, times)


def _first(processor: Any, ledger: Ledger, output: Any, at: float) -> None:
    """The first output of a part, or its end without one."""
    internal_id = output.request_id
    if output.finish_reason is None or output.new_token_ids:
        ledger.first_output(internal_id, at)
    elif _aborted_elsewhere(output) is not None:
        # vLLM would take the end for a first token, with the host's uptime for a prefill
        # (hooks-verified.md 4). Unregistered here, it is passed over there.
        processor.abort_requests([internal_id], internal=True)


def _aborted_elsewhere(output: Any) -> RequestState | None:
    """Where a request stood that another frontend aborted; None for any other end."""
    reason = output.stop_reason
    if not isinstance(reason, str) or not reason.startswith(ABORT_MARK):
        return None
    state: RequestState = reason.removeprefix(ABORT_MARK)  # type: ignore[assignment]  # engine's
    return state


def abort_requests(
    processor: Any, _args: tuple[Any, ...], _kwargs: Mapping[str, Any]
) -> Generator[None, Any, None]:
    """Body of F5, `OutputProcessor.abort_requests`: whoever aborts, the parts have ended."""
    aborted = yield
    ledger, at = ledger_of(processor), now_ms()
    for internal_id in aborted:
        ledger.end_part(internal_id, "abort", at)


def _timestamp(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    """When the engine made the outputs."""
    seconds: float | None = _argument(args, kwargs, 1, "engine_core_timestamp")
    return now_ms() if seconds is None else seconds * 1e3


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], index: int, name: str) -> Any:
    """A parameter by its name; the seams hold it at that place."""
    return args[index] if len(args) > index else kwargs.get(name)
