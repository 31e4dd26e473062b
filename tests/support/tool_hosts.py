"""A tool host that does what its caller's arguments say."""

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.tool_port import EmitOutput
from nnrp_sched.profile.scheduling import AbortReceipt
from nnrp_sched.profile.tools import CallBody, ToolAnswer, ToolDescription

SECONDS = 20


class Part(msgspec.Struct, frozen=True):
    """What a call is to do: the arguments of a tool `play`."""

    say: list[str] = []
    times: int = 1
    """How often it says all of it."""
    hold: bool = False
    """After it has said all, wait to be stopped."""
    deaf: bool = False
    """Take no notice of that until the host is told `wake`."""
    raises: str | None = None
    answer: ToolAnswer = ToolAnswer("completed")
    gone: bool = True
    """What it says of itself once it is stopped."""
    stop_raises: bool = False


class PlayedCall:
    """One call."""

    def __init__(self, host: "PlayedHost", part: Part) -> None:
        self._host = host
        self._part = part

    async def run(self, emit: EmitOutput) -> ToolAnswer:
        """Do as told."""
        self._host.running += 1
        self._host.begun += 1
        try:
            for _ in range(self._part.times):
                for text in self._part.say:
                    await emit(text)
            if self._part.raises is not None:
                raise ZeroDivisionError(self._part.raises)
            if self._part.deaf:
                with anyio.CancelScope(shield=True):
                    await self._host.wake.wait()
            elif self._part.hold:
                await anyio.sleep_forever()
            return self._part.answer
        finally:
            self._host.running -= 1

    async def stop(self, reason: str) -> AbortReceipt:
        """Say so."""
        self._host.stops.append(reason)
        if self._part.stop_raises:
            raise ZeroDivisionError("no idea")
        return AbortReceipt("play", "running", True, self._part.gone, None, 0.0)


class PlayedHost:
    """A tool `play`, and one that is never called."""

    def __init__(self) -> None:
        self.tools = (
            ToolDescription("play", "Do as told.", {"type": "object"}),
            ToolDescription("other", "", {"type": "object"}),
        )
        self.wake = anyio.Event()
        self.asked: list[CallBody] = []
        self.begun = 0
        self.running = 0
        self.stops: list[str] = []

    def call(self, asked: CallBody) -> PlayedCall:
        """A call."""
        self.asked.append(asked)
        return PlayedCall(self, msgspec.json.decode(asked.arguments, type=Part))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that is about to be so."""
        with anyio.fail_after(SECONDS):
            while not holds():
                await checkpoint()


def play(**part: Any) -> dict[str, Any]:
    """The body of a tools.call that does this."""
    return {"name": "play", "arguments": msgspec.json.encode(part).decode()}
