"""The scheduling half of the engine port over a patched vLLM: queue, aborts, priorities."""

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
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
from nnrp_sched_patches.abort import PENDING_AFTER_S, Aborter, EngineAnswer, engine_abort
from nnrp_sched_patches.channel import EngineGone, EngineRefused, EngineSilent, call_engine
from nnrp_sched_patches.frontend import now_ms
from nnrp_sched_patches.ledger import Ledger
from nnrp_sched_patches.ledger_feed import take_stock
from nnrp_sched_patches.ledger_records import Entry, summed_state
from nnrp_sched_patches.telling import shared

_LOGGER = logging.getLogger(__name__)

SET_PRIORITY = "nnrp_set_priority"

STOPPED_KEPT: Final = 1024
"""So many receipts of other frontends' requests are remembered for whoever aborts them again."""
_STOCK_WAIT_S = 2.0
"""A queue that the engine does not confirm in that time is shown as the frontend knows it."""
_PRIORITY_WAIT_S = 8.0
"""Less than the server gives a control request (`control_seconds` of its limits)."""
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
        self._stopped: OrderedDict[str, AbortReceipt] = OrderedDict()

    async def queue(self) -> QueueSnapshot:
        """Every live request, those that wait in the order they will run."""
        authoritative = True
        try:
            await take_stock(self._engine, self.ledger, wait_s=_STOCK_WAIT_S)
        except (NnrpSchedError, msgspec.ValidationError):
            authoritative = False
        if self.ledger.engine_failure is not None:
            authoritative = False
        return self.ledger.snapshot(now_ms(), authoritative=authoritative)

    async def abort(self, entries: Sequence[Entry]) -> list[AbortReceipt]:
        """One receipt for each entry, in order."""
        return await self._aborter.abort(entries)

    async def abort_operations(self, ids: Sequence[str], *, by: AbortBy) -> list[AbortReceipt]:
        """Stop requests by id, or all live ones of programs or agents (`Engine`).

        Those of other API servers on the same engine too.
        """
        if by != "id":
            names = set(ids)
            live = [one for one in self.ledger.live if getattr(one.caller, by) in names]
            receipts = await self.abort(live)
            more = await self._elsewhere(ids, by) if shared(self._engine) else None
            return [*receipts, *(more or {}).values()]
        found = {name: self.ledger.find(name) for name in ids}
        others = [name for name, entry in found.items() if self._may_be_elsewhere(entry)]
        known = {name: entry for name, entry in found.items() if entry is not None}
        own = dict(zip(known, await self.abort(list(known.values())), strict=True))
        elsewhere = await self._elsewhere(others, by) if others else {}
        return [self._named(name, own.get(name), elsewhere) for name in ids]

    def _may_be_elsewhere(self, entry: Entry | None) -> bool:
        """Whether a name that stands for `entry` here may mean a live request of another server."""
        return entry is None or (entry.finished is not None and shared(self._engine))

    async def reprioritize(self, request_id: str, priority: int) -> Reprioritized:
        """Change a waiting request's priority by its id as users see it."""
        entry = self.ledger.find(request_id)
        if entry is None:
            return Reprioritized(request_id, applied=False, reason="unknown")
        wanted = {part.internal_id: priority for part in entry.live_parts}
        if not wanted:
            return Reprioritized(request_id, applied=False, reason="not_waiting")
        try:
            reply = await call_engine(
                self._engine, SET_PRIORITY, {"ids": wanted}, wait_s=_PRIORITY_WAIT_S
            )
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

    async def _elsewhere(self, names: Sequence[str], by: AbortBy) -> dict[str, AbortReceipt] | None:
        """Receipts of other frontends' requests, by name; None without the engine's word."""
        started = now_ms()
        try:
            answers = await engine_abort(self._engine, names=names, by=by, wait_s=PENDING_AFTER_S)
        except EngineGone as error:
            self.ledger.engine_died(str(error), now_ms())
            return None
        except EngineSilent:
            # It has been asked: what there is of these ends with its long step.
            waited_ms = now_ms() - started
            asked = names if by == "id" else ()
            return {
                one: AbortReceipt(one, "pending", False, False, None, waited_ms) for one in asked
            }
        except (NnrpSchedError, msgspec.ValidationError) as error:
            _LOGGER.warning("requests of other API servers could not be stopped: %s", error)
            return None
        told: dict[str, list[EngineAnswer]] = {}
        for answer in answers.values():
            if answer.name is not None:
                told.setdefault(answer.name, []).append(answer)
        receipts = {
            name: AbortReceipt(
                request_id=name,
                state=summed_state(answer.state for answer in parts),
                accepted=any(answer.accepted for answer in parts),
                authoritative=True,
                tokens=sum(answer.tokens or 0 for answer in parts),
                latency_ms=now_ms() - started,
            )
            for name, parts in told.items()
        }
        for name, receipt in receipts.items():
            self._stopped[name] = receipt
            self._stopped.move_to_end(name)
        while len(self._stopped) > STOPPED_KEPT:
            self._stopped.popitem(last=False)
        return receipts

    def _named(
        self, name: str, own: AbortReceipt | None, elsewhere: Mapping[str, AbortReceipt] | None
    ) -> AbortReceipt:
        """The receipt under a name: of a live request elsewhere, ours, an earlier one, of none."""
        there = None if elsewhere is None else elsewhere.get(name)
        if there is not None and there.state != "pending":
            return there
        if own is not None:
            return msgspec.structs.replace(own, request_id=name)
        nothing = AbortReceipt(name, "unknown", False, elsewhere is not None, None, 0.0)
        return self._stopped.get(name, there or nothing)
