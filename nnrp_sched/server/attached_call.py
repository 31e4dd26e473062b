"""An operation's part in a call that other operations may read too, because they have its key."""

from collections.abc import AsyncGenerator

import msgspec

from nnrp_sched.engine.records import AbortReceipt, ChatBody, ChatCall, Reprioritized
from nnrp_sched.errors import BackendError
from nnrp_sched.server.ending import Ending
from nnrp_sched.server.shared_call import SharedCall

_LEFT = 499


class AttachedCall:
    """The call as one of its operations has it. An `EngineCall`.

    Ending the operation ends the call in the engine only when nobody else wants the answer.
    """

    def __init__(self, shared: SharedCall, request_id: str, operation: str) -> None:
        """`request_id` becomes the engine's handle if this operation is the one that calls it."""
        self._shared = shared
        self._request_id = request_id
        self._operation = operation
        self._seat = shared.join(operation)

    @property
    def request_id(self) -> str:
        """The engine's handle of the call."""
        return self._request_id if self._shared.own is None else self._shared.own.request_id

    @property
    def name(self) -> str:
        """The id by which the engine shows the call to users."""
        return self._operation if self._shared.own is None else self._shared.own.name

    def tokens(self) -> int | None:
        """Output tokens so far, those included that came before this operation; None at the end."""
        live = self._shared.live
        return None if live is None else live.tokens()

    async def complete(self, call: ChatCall) -> ChatBody:
        """The answer whole. An operation that leaves its call has none: `BackendError`."""
        self._shared.call(call, self._seat)
        part = await self._shared.next(self._seat)
        if part is None:
            raise BackendError("the operation has left its call", status=_LEFT)
        answer: ChatBody = msgspec.json.decode(part)
        return answer

    async def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """The answer in chunks; for an operation that leaves its call, as far as it came."""
        self._shared.call(call, self._seat)
        while (part := await self._shared.next(self._seat)) is not None:
            yield msgspec.json.decode(part)

    def withhold(self, ending: Ending) -> AbortReceipt | None:
        """The operation ends before it asked for the answer."""
        receipt = None if self._shared.own is None else self._shared.receipt(self._operation)
        self._shared.leave(self._seat, ending)
        return receipt

    def claim(self, ending: Ending) -> AbortReceipt | None:
        """The operation ends early; None when the engine is to be asked, by the caller."""
        if not self._shared.goes_on_without(self._seat, ending):
            self._shared.die()
            return None
        receipt = self._shared.receipt(self._operation)
        self._shared.leave(self._seat, ending)
        return receipt

    async def abort(self, ending: Ending) -> AbortReceipt:
        """Leave the call, or end it as its last operation."""
        receipt = self.claim(ending)
        if receipt is not None or self._shared.own is None:
            return receipt or AbortReceipt(self._operation, "admitting", True, True, 0, 0.0)
        return await self._shared.own.abort(ending)

    async def reprioritize(self, priority: int) -> Reprioritized:
        """Change the call's priority, for all its operations."""
        live = self._shared.live
        if live is None:
            return Reprioritized(self._operation, applied=False, reason="unknown")
        done = await live.reprioritize(priority)
        return msgspec.structs.replace(done, request_id=self._operation)

    def close(self) -> None:
        """The operation is over."""
        self._shared.remove(self._seat)
