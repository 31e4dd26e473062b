"""What control requests act on: the engine and the operations, as far as one peer may."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import anyio
import msgspec

from nnrp_sched.engine.port import Engine
from nnrp_sched.engine.records import (
    AbortReceipt,
    QueuedRequest,
    QueueSnapshot,
    Reprioritized,
)
from nnrp_sched.profile import Extension
from nnrp_sched.profile.control_bodies import AbortBody
from nnrp_sched.server.cancellation import is_our_cancellation
from nnrp_sched.server.directory import Directory
from nnrp_sched.server.operation import Operation
from nnrp_sched.server.principal import Principal

logger = logging.getLogger(__name__)


class Desk:
    """The requests of one peer."""

    def __init__(
        self,
        engine: Engine,
        directory: Directory,
        principal: Principal,
        *,
        abort_seconds: float,
        operations_behind: Callable[[str], Sequence[str]] = lambda _name: (),
        extensions: Sequence[Extension] = (),
    ) -> None:
        """`abort_seconds` bounds how long operations wait for the engine to confirm their abort.

        `operations_behind` gives the operations that share a call, by the name the engine has for
        it; none for a call that is one operation's. `extensions` are what the server declares
        beyond what its engine can do.
        """
        self.engine = engine
        self.extensions = extensions
        self._directory = directory
        self._principal = principal
        self._abort_seconds = abort_seconds
        self._operations_behind = operations_behind

    async def queue(self) -> QueueSnapshot:
        """The queue as this peer may see it."""
        snapshot = await self.engine.queue()
        rows = tuple(self._shown(row) for row in snapshot.operations)
        return self._principal.view(msgspec.structs.replace(snapshot, operations=rows))

    def _shown(self, row: QueuedRequest) -> QueuedRequest:
        """A request under the id of an operation that has it: this peer's own, else the oldest.

        The operation that called the engine may have ended, and others may share the call.
        """
        names = self._operations_behind(row.id) if row.source == "nnrp" else ()
        if not names:
            return row
        shown = next((name for name in names if self._principal.owns(name)), names[0])
        return row if shown == row.id else msgspec.structs.replace(row, id=shown)

    async def abort(self, wanted: AbortBody) -> list[AbortReceipt]:
        """End operations: one receipt for each id, or for each live operation of the name.

        Of the server's own operations the peers are told; what else there is, HTTP requests, only
        the engine knows. Operations that start later are not covered.
        """
        if wanted.by == "id":
            found = await self._abort_ids(wanted.names)
            return [found.get(name) or _unknown(name) for name in wanted.names]
        (name,) = wanted.names
        ours = [
            each for each in self._directory.of(wanted.by, name) if self._principal.sees(each.name)
        ]
        receipts = await self._abort_own(ours, ())
        if self._principal.operator:
            for each in await self.engine.abort_operations([name], by=wanted.by):
                receipts.setdefault(each.request_id, each)
        return list(receipts.values())

    async def _abort_ids(self, names: Iterable[str]) -> dict[str, AbortReceipt]:
        ours: list[Operation] = []
        others: list[str] = []
        for name in dict.fromkeys(names):
            operation = self._directory.get(name) if self._principal.sees(name) else None
            if operation is not None:
                ours.append(operation)
            elif self._principal.operator and not self._operations_behind(name):
                # Where others share the call of one that has ended, the id means nothing any more.
                others.append(name)
        return await self._abort_own(ours, others)

    async def _abort_own(
        self, operations: Sequence[Operation], others: Sequence[str]
    ) -> dict[str, AbortReceipt]:
        """End operations, and requests that are none, by one call to the engine."""
        claimed = [each for each in operations if each.claim_abort()]
        receipts: dict[str, AbortReceipt] = {}
        names = [*(each.call.name for each in claimed), *others]
        try:
            # Shielded: these operations end now, whatever becomes of who asked for it.
            with anyio.move_on_after(self._abort_seconds, shield=True):
                if names:
                    answered = await self.engine.abort_operations(names, by="id")
                    receipts = {each.request_id: each for each in answered}
                for each in claimed:
                    name = each.call.name
                    if name not in receipts or receipts[name].state == "unknown":
                        # On its way into the engine: only its handle is known there yet.
                        receipts[name] = await self.engine.abort(each.call.request_id)
        except (Exception, asyncio.CancelledError) as error:
            # The engine's code: the operations end without a receipt, and say so.
            if is_our_cancellation(error):
                raise
            logger.exception("the abort of %s failed", names)
        finally:
            for each in claimed:
                each.settle_abort(receipts.get(each.call.name))
        told = {name: receipts[name] for name in others if name in receipts}
        return told | {each.name: await each.abort_receipt() for each in operations}

    async def reprioritize(self, name: str, priority: int) -> Reprioritized:
        """Change the priority of one operation."""
        operation = self._directory.get(name) if self._principal.sees(name) else None
        if operation is not None:
            return await operation.reprioritize(priority)
        if self._principal.operator:
            return await self.engine.reprioritize(name, priority)
        return Reprioritized(name, applied=False, reason="unknown")


def _unknown(name: str) -> AbortReceipt:
    return AbortReceipt(name, "unknown", False, True, None, 0.0)
