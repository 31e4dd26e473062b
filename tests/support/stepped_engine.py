"""A scripted engine that counts its calls and goes on only when the test lets it."""

from collections.abc import AsyncGenerator
from typing import Any

import anyio

from nnrp_sched.engine.records import ChatBody, ChatCall
from nnrp_sched.engine.scripted import Policy, ScriptedEngine
from tests.support.serving import script


class SteppedEngine(ScriptedEngine):
    """Each piece of content of a script with a delay takes one step.

    Never two calls of one body at once: that would be a key that did not hold.
    """

    def __init__(self, *, slots: int | None = None, policy: Policy = "priority") -> None:
        super().__init__(sleep=self._step, slots=slots, policy=policy)
        self.calls: list[ChatCall] = []
        self._steps = anyio.Semaphore(0)

    def let(self, steps: int) -> None:
        """Let the calls take so many steps, whichever come first."""
        for _ in range(steps):
            self._steps.release()

    async def _step(self, _seconds: float) -> None:
        await self._steps.acquire()

    async def complete(self, call: ChatCall) -> ChatBody:
        """Count, and serve."""
        self.calls.append(call)
        return await super().complete(call)

    async def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """Count, and serve."""
        self.calls.append(call)
        async for chunk in super().stream(call):
            yield chunk


def stepped(*pieces: str, **members: Any) -> dict[str, Any]:
    """A chat body that says these pieces, one a step."""
    return script(text=list(pieces), delay_ms=1, **members)
