"""The engine of a server that serves no chats: one that only hosts tools."""

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from nnrp_sched.engine.port import AbortBy
from nnrp_sched.engine.records import (
    AbortReceipt,
    ChatBody,
    ChatCall,
    EngineDescription,
    QueueSnapshot,
    Reprioritized,
)
from nnrp_sched.errors import BackendError

_DESCRIPTION: Final = EngineDescription("none", (), tool_calls=False)
_NO_CHUNKS: Final[tuple[ChatBody, ...]] = ()


class AbsentEngine:
    """An `Engine` without models: it refuses every chat, and its queue is empty."""

    @property
    def description(self) -> EngineDescription:
        """It serves nothing."""
        return _DESCRIPTION

    async def complete(self, call: ChatCall) -> ChatBody:
        """Refuse the call."""
        raise _refusal(call)

    async def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """Refuse the call."""
        for chunk in _NO_CHUNKS:
            yield chunk
        raise _refusal(call)

    def tokens(self, request_id: str) -> int | None:
        """Nothing is known of any call."""
        return None

    async def abort(self, request_id: str) -> AbortReceipt:
        """There is no such call."""
        return _unknown(request_id)

    async def abort_operations(self, ids: Sequence[str], *, by: AbortBy) -> list[AbortReceipt]:
        """There are no such calls."""
        return [_unknown(each) for each in ids] if by == "id" else []

    async def queue(self) -> QueueSnapshot:
        """Nothing."""
        return QueueSnapshot((), running=0, waiting=0, authoritative=True, taken_ms=0.0)

    async def reprioritize(self, request_id: str, priority: int) -> Reprioritized:
        """There is no such call."""
        return Reprioritized(request_id, applied=False, reason="unknown")


def _refusal(call: ChatCall) -> BackendError:
    return BackendError(
        f"The model `{call.body.get('model')}` does not exist: this server has no models, it hosts "
        "tools.",
        status=404,
        error_type="NotFoundError",
        parameter="model",
    )


def _unknown(name: str) -> AbortReceipt:
    return AbortReceipt(name, "unknown", False, True, None, 0.0)
