"""The scheduling half of the engine port over a patched vLLM: queue, aborts, priorities."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from nnrp_sched.engine.port import AbortBy
from nnrp_sched.engine.records import (
    AbortReceipt,
    QueueSnapshot,
    Reprioritized,
    ReprioritizeReason,
)
from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_patches.abort import Aborter, engine_abort
from nnrp_sched_patches.channel import EngineGone, EngineRefused, call_engine
from nnrp_sched_patches.frontend import now_ms
from nnrp_sched_patches.ledger import Ledger
from nnrp_sched_patches.ledger_feed import STATE, take_stock
from nnrp_sched_patches.ledger_records import Entry, summed_state

SET_PRIORITY = "nnrp_set_priority"

_WAIT_S = 2.0
_ELSEWHERE = 4096
"""How many requests of other frontends are looked through for an id."""
_OUTCOMES: Final[tuple[ReprioritizeReason, ...]] = (
    "applied",
    "policy_fcfs",
    "not_waiting",
    "unknown",
)
"""Of several choices' outcomes the first here is the request's."""


class Control:
    """What may be seen and done of the requests in one patched vLLM."""

    def __init__(self, engine: Any, ledger: Ledger) -> None:
        """`engine` is an AsyncLLM, `ledger` that of its frontend."""
        self._engine = engine
        self._aborter = Aborter(engine, ledger)
        self.ledger = ledger

    async def queue(self) -> QueueSnapshot:
        """Every live request, those that wait in the order they will run."""
        authoritative = True
        try:
            await take_stock(self._engine, self.ledger, wait_s=_WAIT_S)
        except (NnrpSchedError, msgspec.ValidationError):
            authoritative = False
        if self.ledger.engine_failure is not None:
            authoritative = False
        return self.ledger.snapshot(now_ms(), authoritative=authoritative)

    async def abort(self, entries: Sequence[Entry]) -> list[AbortReceipt]:
        """One receipt for each entry, in order."""
        return await self._aborter.abort(entries)

    async def abort_operations(self, ids: Sequence[str], *, by: AbortBy) -> list[AbortReceipt]:
        """Stop requests by id, or all live ones of programs or agents (`Engine`)."""
        if by != "id":
            names = set(ids)
            live = self.ledger.live
            return await self.abort([e for e in live if getattr(e.caller, by) in names])
        found = {name: self.ledger.find(name) for name in ids}
        entries = [entry for entry in found.values() if entry is not None]
        await self.abort(entries)
        elsewhere = await self._elsewhere([name for name, entry in found.items() if entry is None])
        receipts: list[AbortReceipt] = []
        for name in ids:
            entry = found[name]
            receipt = elsewhere[name] if entry is None else entry.receipt
            if receipt is not None:
                receipts.append(msgspec.structs.replace(receipt, request_id=name))
        return receipts

    async def reprioritize(self, request_id: str, priority: int) -> Reprioritized:
        """Change a waiting request's priority by its id as users see it."""
        entry = self.ledger.find(request_id)
        if entry is None:
            return Reprioritized(request_id, applied=False, reason="unknown")
        wanted = {part.internal_id: priority for part in entry.live_parts}
        if not wanted:
            return Reprioritized(request_id, applied=False, reason="not_waiting")
        try:
            reply = await call_engine(self._engine, SET_PRIORITY, {"ids": wanted}, wait_s=_WAIT_S)
        except EngineRefused:
            return Reprioritized(request_id, applied=False, reason="unsupported")
        except NnrpSchedError:
            return Reprioritized(request_id, applied=False, reason="unknown")
        outcomes: dict[str, str] = reply["requests"]
        for one, outcome in outcomes.items():
            if outcome == "applied":
                entry.parts[one].priority = priority
        told = set(outcomes.values())
        for reason in _OUTCOMES:
            if reason in told:
                return Reprioritized(request_id, applied=reason == "applied", reason=reason)
        return Reprioritized(request_id, applied=False, reason="unknown")

    async def _elsewhere(self, names: Sequence[str]) -> dict[str, AbortReceipt]:
        """Abort requests of other frontends of the same engine, by vLLM's external id."""
        started = now_ms()
        receipts = {name: AbortReceipt(name, "unknown", False, False, None, 0.0) for name in names}
        if not names:
            return receipts
        try:
            wanted = {"ids": None, "limit": _ELSEWHERE}
            reply = await call_engine(self._engine, STATE, wanted, wait_s=_WAIT_S)
            external = {one: external_id(one) for one in reply["requests"]}
            matches = {name: [one for one in external if external[one] == name] for name in names}
            ids = [one for found in matches.values() for one in found]
            answers = await engine_abort(self._engine, ids, wait_s=_WAIT_S) if ids else {}
        except EngineGone as error:
            self.ledger.engine_died(str(error), now_ms())
            return receipts
        except (NnrpSchedError, msgspec.ValidationError):
            return receipts
        for name, found in matches.items():
            told = [answers[one] for one in found if one in answers]
            receipts[name] = AbortReceipt(
                request_id=name,
                state=summed_state(answer.state for answer in told),
                accepted=any(answer.accepted for answer in told),
                authoritative=True,
                tokens=sum(answer.tokens or 0 for answer in told) if told else None,
                latency_ms=now_ms() - started,
            )
        return receipts


def external_id(internal_id: str) -> str:
    """vLLM's external id in an internal one.

    That is `<external>-<8 random>`, with `<index>_` before it for one of several choices.
    """
    stem = internal_id.rpartition("-")[0]
    index, separator, rest = stem.partition("_")
    return rest if separator and index.isdecimal() else stem
