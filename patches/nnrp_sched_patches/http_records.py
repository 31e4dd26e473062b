"""The records of requests over HTTP; those over NNRP are the server's to make."""

import asyncio
from collections.abc import Callable
from typing import Final

from nnrp_sched.engine.port import EngineDescription
from nnrp_sched.observe.observers import Observer
from nnrp_sched.observe.record import AbortObservation, OperationRecord, Outcome
from nnrp_sched_patches.ledger_records import Entry

_ENDS: Final = frozenset({"stop", "length", "repetition"})
"""vLLM's finish reasons of a whole answer."""
_REFUSED: Final = "refused"
_SETTLED_S: Final = 0.25
"""The engine's word of an end may be faster than the last output, which has the exact times; the
receipt of an abort comes behind the end too."""


def http_records(
    observer: Observer, description: EngineDescription, *, settled_s: float = _SETTLED_S
) -> Callable[[Entry], None]:
    """What a ledger calls for each ended request, so that `observer` gets its record.

    To be made in the event loop of the ledger. The record is made a moment after the end, when the
    last facts are in.
    """
    loop = asyncio.get_running_loop()

    settling: set[int] = set()

    def tell(entry: Entry) -> None:
        if entry.aborting is not None:
            # Its receipt is on its way, and comes within the time that an abort has.
            entry.aborting.add_done_callback(lambda _: tell(entry))
            return
        settling.discard(id(entry))
        # A request whose input is a stream has no part at first, and goes on.
        if entry.finished is not None:
            observer(record_of(entry, description))

    def ended(entry: Entry) -> None:
        if entry.source == "http" and id(entry) not in settling:
            settling.add(id(entry))
            loop.call_later(settled_s, tell, entry)

    return ended


def record_of(entry: Entry, description: EngineDescription) -> OperationRecord:
    """The record of a request that has ended."""
    ended = entry.submitted if entry.finished is None else entry.finished
    reasons = tuple((entry.reason or "unknown").split("+"))
    outcome, error = _outcome(frozenset(reasons))
    caller = entry.caller
    return OperationRecord(
        id=entry.id,
        source="http",
        operation=entry.operation or "generate_content",
        outcome=outcome,
        began=entry.submitted,
        ended=ended,
        # With several, which one it was stands in a body that is not ours to read.
        model=description.models[0] if len(description.models) == 1 else None,
        engine=description.family,
        transport="tcp",
        program=caller.program,
        agent=caller.agent,
        parent=caller.parent,
        timings=entry.timings,
        output_tokens=entry.tokens,
        finish_reasons=reasons if error is None else (),
        error_code=error,
        abort=_abort(entry, ended) if outcome == "cancelled" else None,
        traceparent=entry.traceparent,
    )


def _outcome(reasons: frozenset[str]) -> tuple[Outcome, str | None]:
    """How a request with these finish reasons ended; of a failure also its kind."""
    if reasons <= _ENDS:
        return "completed", None
    if "abort" in reasons:
        return "cancelled", None
    return "failed", _REFUSED if _REFUSED in reasons else "backend_error"


def _abort(entry: Entry, ended: float) -> AbortObservation:
    receipt = entry.receipt
    if receipt is None:
        # An abort that nobody here heard of: another frontend's, or a hook that is off.
        return AbortObservation(entry.abort_cause or "unknown", ended, ended)
    reason = entry.abort_cause or "unknown"
    return AbortObservation(reason, ended - receipt.latency_ms, ended, receipt)
