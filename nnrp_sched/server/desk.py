"""What control requests act on: the engine and the operations, as far as one peer may."""

from collections.abc import Iterable

import anyio

from nnrp_sched.engine.port import Engine
from nnrp_sched.engine.records import AbortReceipt, QueueSnapshot, Reprioritized
from nnrp_sched.profile.control_bodies import AbortBody
from nnrp_sched.server.directory import Directory
from nnrp_sched.server.operation import Operation
from nnrp_sched.server.principal import Principal


class Desk:
    """The requests of one peer."""

    def __init__(self, engine: Engine, directory: Directory, principal: Principal) -> None:
        self.engine = engine
        self._directory = directory
        self._principal = principal

    async def queue(self) -> QueueSnapshot:
        """The queue as this peer may see it."""
        return self._principal.view(await self.engine.queue())

    async def abort(self, wanted: AbortBody) -> list[AbortReceipt]:
        """End operations: one receipt for each id, or for each live operation of the name.

        Our own operations are ended by themselves, so that their peers are told; what else there
        is, HTTP requests, the engine ends. Operations that start later are not covered.
        """
        if wanted.by == "id":
            return await self._abort_ids(wanted.names)
        (name,) = wanted.names
        ours = await self._abort_own(
            each for each in self._directory.of(wanted.by, name) if self._principal.sees(each.name)
        )
        if not self._principal.operator:
            return list(ours.values())
        others = await self.engine.abort_operations([name], by=wanted.by)
        return [*ours.values(), *(each for each in others if each.request_id not in ours)]

    async def _abort_ids(self, names: list[str]) -> list[AbortReceipt]:
        found = [self._directory.get(name) for name in names if self._principal.sees(name)]
        receipts = await self._abort_own(each for each in found if each is not None)
        missing = [name for name in dict.fromkeys(names) if name not in receipts]
        if self._principal.operator and missing:
            others = await self.engine.abort_operations(missing, by="id")
            receipts |= {each.request_id: each for each in others}
        return [receipts.get(name) or _unknown(name) for name in names]

    async def _abort_own(self, operations: Iterable[Operation]) -> dict[str, AbortReceipt]:
        """End operations at once, each within its own bound."""
        receipts: dict[str, AbortReceipt] = {}

        async def abort(operation: Operation) -> None:
            receipts[operation.name] = await operation.abort()

        operations = list(operations)
        async with anyio.create_task_group() as tasks:
            for each in operations:
                tasks.start_soon(abort, each)
        return {each.name: receipts[each.name] for each in operations}

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
