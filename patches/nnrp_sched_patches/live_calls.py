"""The chats in flight through one VllmEngine, and where vLLM's frontend has them.

Only the frontend's own tables are read here, so what they say is never the scheduler's word.
"""

import contextlib
import secrets
from collections.abc import Generator, Sequence
from typing import Any

import anyio
from msgspec import Struct

from nnrp_sched.engine.port import AbortBy
from nnrp_sched.engine.records import (
    AbortReceipt,
    AbortState,
    ChatCall,
    QueuedRequest,
    QueueSnapshot,
    RequestState,
    ServedCall,
    Timings,
)
from nnrp_sched.errors import BackendError
from nnrp_sched_patches.frontend import now_ms
from nnrp_sched_patches.ledger import Ledger
from nnrp_sched_patches.ledger_records import Entry
from nnrp_sched_patches.origin import Origin

EXTERNAL_PREFIX = "chatcmpl-"
"""What vLLM's chat serving puts before the request id of a body."""

ABORTED_STATUS = 499
"""Status of a call that was aborted while it was admitted: the client closed the request."""


class LiveCall:
    """One chat from the moment it is called until its caller has its end."""

    def __init__(self, call: ChatCall, ledger: Ledger | None = None) -> None:
        """Noted in `ledger` too, where vLLM is patched."""
        self.call = call
        # Two calls may come with one id, and an HTTP client may choose the same one: vLLM's abort
        # by external id would hit them all.
        self.engine_id = f"{call.request_id}-{secrets.token_hex(4)}"
        self.admission = anyio.CancelScope()
        """Covers the part of the call that no abort in the engine can reach."""
        self.answering = False
        """Whether the first chunk came: the engine had the request."""
        self.submitted = now_ms()
        self.aborted_publicly = False
        self.entry: Entry | None = None
        if ledger is not None:
            self.entry = ledger.open(
                call.caller,
                "nnrp",
                external_id=self.external_id,
                handle=call.request_id,
                at=self.submitted,
                traceparent=call.traceparent,
            )
            self.entry.cancel = self.admission.cancel
            self.entry.moved = call.moved
        self.origin = Origin(
            call.caller, "nnrp", self.submitted, traceparent=call.traceparent, entry=self.entry
        )

    @property
    def external_id(self) -> str:
        """The id that vLLM's frontend knows the call by."""
        return f"{EXTERNAL_PREFIX}{self.engine_id}"

    @property
    def aborted(self) -> bool:
        """Whether any choice of it ended by an abort, whoever asked for that."""
        parts = () if self.entry is None else self.entry.parts.values()
        return self.aborted_publicly or any(part.reason == "abort" for part in parts)

    @contextlib.contextmanager
    def admitted(self) -> Generator[None, None, None]:
        """The part that an abort cuts off by itself; raises BackendError then."""
        with self.admission:
            yield
        if self.admission.cancel_called:
            # Whatever vLLM made of it: the receipt says that it was stopped.
            raise BackendError(
                "the request was aborted while it was admitted",
                status=ABORTED_STATUS,
                error_type="RequestAborted",
            )

    def summary(self) -> ServedCall:
        """What is known of the call at its end: without patches, when it began and ended."""
        if self.entry is None:
            return ServedCall(Timings(submitted=self.submitted, finished=now_ms()))
        return ServedCall(self.entry.timings, self.entry.tokens, self.entry.reason)

    def tokens(self, engine: Any) -> int | None:
        """Output tokens so far, by the ledger or by vLLM's frontend; None when it has no call."""
        if self.entry is not None:
            return self.entry.tokens
        found = registration(engine, self.external_id)
        return None if found is None else found.tokens

    async def abort_publicly(self, engine: Any) -> AbortReceipt:
        """Stop it over vLLM's public interface, under the id that users see."""
        started = now_ms()
        state: AbortState = "finished"
        accepted, tokens = not self.answering, None
        found = registration(engine, self.external_id)
        if found is not None:
            self.aborted_publicly = True
            await engine.abort(found.handles, internal=True)
            state, accepted, tokens = found.state, True, found.tokens
        elif accepted:
            self.admission.cancel()
            state, tokens = "admitting", 0
        latency_ms = now_ms() - started
        return AbortReceipt(self.call.visible_id, state, accepted, False, tokens, latency_ms)

    def shown(self, engine: Any) -> QueuedRequest:
        """The call as far as vLLM's frontend tells."""
        found = registration(engine, self.external_id)
        caller = self.call.caller
        return QueuedRequest(
            id=self.call.visible_id,
            program=caller.program,
            agent=caller.agent,
            parent=caller.parent,
            source="nnrp",
            state="admitting" if found is None else found.state,
            queue_delay_ms=0.0 if found is None or found.tokens else now_ms() - self.submitted,
            position=None,
            estimate_ms=None,
            tokens=0 if found is None else found.tokens or 0,
            priority=self.call.priority,
            timings=Timings(submitted=self.submitted),
        )


class LiveCalls:
    """Calls by the request id that their caller gave them."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        """Calls are noted in `ledger` too, where vLLM is patched."""
        self._ledger = ledger
        self._calls: dict[str, list[LiveCall]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._calls.values()))

    def open(self, call: ChatCall) -> LiveCall:
        """Note a call that begins."""
        live = LiveCall(call, self._ledger)
        self._calls.setdefault(call.request_id, []).append(live)
        return live

    def close(self, live: LiveCall) -> None:
        """Forget a call that ended."""
        calls = self._calls[live.call.request_id]
        calls.remove(live)
        if not calls:
            del self._calls[live.call.request_id]
        if self._ledger is not None and live.entry is not None:
            self._ledger.close(live.entry, "ended by the caller", now_ms())
        if live.call.served is not None:
            live.call.served(live.summary())

    def of(self, request_id: str) -> list[LiveCall]:
        """The calls in flight with that id."""
        return list(self._calls.get(request_id, ()))

    async def abort_publicly(
        self, engine: Any, names: Sequence[str], by: AbortBy
    ) -> dict[str, AbortReceipt]:
        """Stop calls by the ids that users see, or all of programs or agents; receipts by id."""
        receipts: dict[str, AbortReceipt] = {}
        for live in [live for calls in self._calls.values() for live in calls]:
            seen = live.call.visible_id
            if (seen if by == "id" else getattr(live.call.caller, by)) in names:
                receipts[seen] = await live.abort_publicly(engine)
        return receipts

    def snapshot(self, engine: Any) -> QueueSnapshot:
        """Every call, as far as vLLM's frontend tells: never the scheduler's word."""
        shown = tuple(live.shown(engine) for calls in self._calls.values() for live in calls)
        running = sum(one.state == "running" for one in shown)
        return QueueSnapshot(shown, running, len(shown) - running, False, now_ms())


class Registration(Struct, frozen=True):
    """What vLLM's frontend knows of one external id."""

    handles: tuple[str, ...]
    """Internal ids for `AsyncLLM.abort(..., internal=True)`; a parent's for several choices.

    By its children's or its external id, vLLM would leave the parent of several choices in its
    tables for ever (hooks-verified.md, C9).
    """
    tokens: int | None
    """Output tokens so far, over all choices."""

    @property
    def state(self) -> RequestState:
        """`running` when tokens came; without the scheduler's word nothing else is certain."""
        return "running" if self.tokens else "unknown"


def registration(engine: Any, external_id: str) -> Registration | None:
    """Where the frontend of `engine`, an AsyncLLM, has a request; None when it has it not."""
    processor = engine.output_processor
    # `get`: the table is a defaultdict, and looking must not add to it.
    states = [
        processor.request_states[internal_id]
        for internal_id in processor.external_req_ids.get(external_id) or ()
        if internal_id in processor.request_states
    ]
    if not states:
        return None
    owners = [state if state.parent_req is None else state.parent_req for state in states]
    counts = [_tokens(state) for state in states]
    return Registration(
        handles=tuple(dict.fromkeys(owner.request_id for owner in owners)),
        tokens=None if None in counts else sum(count or 0 for count in counts),
    )


def _tokens(state: Any) -> int | None:
    if state.detokenizer is None:
        return None
    count: int = state.detokenizer.num_output_tokens()
    return count
