"""What an operation needs of the engine, and calls that must not be trusted.

What an engine raises or answers is foreign code's.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Protocol

import anyio

from nnrp_sched.engine.port import Engine
from nnrp_sched.engine.records import AbortReceipt, ChatBody, ChatCall, Reprioritized
from nnrp_sched.profile import Completed
from nnrp_sched.profile.json_values import is_object
from nnrp_sched.server.cancellation import is_our_cancellation
from nnrp_sched.server.ending import Ending

logger = logging.getLogger(__name__)


class EngineCall(Protocol):
    """One operation's call of the engine: its own, or one that it shares with others."""

    @property
    def request_id(self) -> str:
        """The engine's handle of the call."""
        ...

    @property
    def name(self) -> str:
        """The id by which the engine shows the call to users."""
        ...

    def tokens(self) -> int | None:
        """Output tokens so far; None when not known."""
        ...

    async def complete(self, call: ChatCall) -> ChatBody:
        """The answer whole. Raises what the engine raises."""
        ...

    def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """The answer in chunks. Raises what the engine raises."""
        ...

    def withhold(self, ending: Ending) -> AbortReceipt | None:
        """The operation ends before it asked for the answer; the receipt when others go on."""
        ...

    def claim(self, ending: Ending) -> AbortReceipt | None:
        """The operation ends early, for this reason.

        None when the engine is to be asked, which is then the caller's to do. Otherwise the call
        goes on for somebody else, and the receipt says so.
        """
        ...

    async def abort(self, ending: Ending) -> AbortReceipt:
        """End the operation's part in the call, and the call when it was the last."""
        ...

    async def reprioritize(self, priority: int) -> Reprioritized:
        """Change the call's priority; lower is sooner."""
        ...

    def close(self) -> None:
        """The operation is over; what it still has of the call is given back."""
        ...


class OwnCall:
    """A call that no other operation has a part in."""

    def __init__(self, engine: Engine, request_id: str, name: str) -> None:
        self._engine = engine
        self.request_id = request_id
        self.name = name

    def tokens(self) -> int | None:
        """As the engine counts."""
        return self._engine.tokens(self.request_id)

    async def complete(self, call: ChatCall) -> ChatBody:
        """The engine's answer."""
        return await self._engine.complete(call)

    def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """The engine's chunks."""
        return self._engine.stream(call)

    def withhold(self, ending: Ending) -> AbortReceipt | None:
        """Nothing: there is no call."""

    def claim(self, ending: Ending) -> AbortReceipt | None:
        """Nothing: the engine is to be asked."""

    async def abort(self, ending: Ending) -> AbortReceipt:
        """End it."""
        return await self._engine.abort(self.request_id)

    async def reprioritize(self, priority: int) -> Reprioritized:
        """Change its priority."""
        return await self._engine.reprioritize(self.name, priority)

    def close(self) -> None:
        """Nothing: the call ends with the operation's task."""


async def ask_abort(call: EngineCall, ending: Ending, seconds: float) -> AbortReceipt | None:
    """Stop a call; None when the engine fails or does not answer within `seconds`.

    Shielded: who asked may be gone, the work is to stop all the same.
    """
    try:
        with anyio.move_on_after(seconds, shield=True):
            receipt = await call.abort(ending)
            logger.info("request %s aborted: %s", call.request_id, receipt)
            return receipt
        logger.warning("request %s: the engine did not confirm its abort", call.request_id)
    except (Exception, asyncio.CancelledError) as error:
        # The operation ends without a receipt, and says so here.
        if is_our_cancellation(error):
            raise
        logger.exception("request %s: the abort failed", call.request_id)
    return None


def completed(answer: ChatBody) -> Completed:
    """An engine's answer as the last event; raises `TypeError` when it is no object."""
    if not is_object(answer):
        raise TypeError(f"the engine answered with {type(answer).__name__}, not a chat completion")
    return Completed(body=answer)
