"""The scheduling half of the port for an engine that lets nobody look at its queue."""

import time
from collections.abc import Sequence

from nnrp_sched.engine.port import AbortBy
from nnrp_sched.engine.records import AbortReceipt, QueueSnapshot, Reprioritized


class OpaqueQueue:
    """Says truthfully, and never authoritatively, that nothing is known and nothing changed."""

    def tokens(self, request_id: str) -> int | None:
        """Nothing is known of a call in flight."""
        return None

    async def queue(self) -> QueueSnapshot:
        """An empty snapshot."""
        return QueueSnapshot((), 0, 0, authoritative=False, taken_ms=time.monotonic_ns() / 1e6)

    async def reprioritize(self, request_id: str, priority: int) -> Reprioritized:
        """Nothing changes."""
        del priority
        return Reprioritized(request_id, applied=False, reason="unsupported")

    async def abort_operations(self, ids: Sequence[str], *, by: AbortBy) -> list[AbortReceipt]:
        """Nothing is found."""
        if by != "id":
            return []
        return [AbortReceipt(name, "unknown", False, False, None, 0.0) for name in ids]
