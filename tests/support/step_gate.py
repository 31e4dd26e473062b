"""The other end of a recorder's socket: it hears of each step and decides what happens before it.

The engine has scheduled a step and waits for the answer. What is sent to it until then lies in its
input queue when the step is computed, so that it takes effect at that step's end.
"""

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.support import step_recorder
from tests.support.step_recorder import Line, Scheduled

_LINE_BYTES = 1 << 20


class StepGate:
    """Hears of every step of one engine."""

    def __init__(self, address: str) -> None:
        self.address = address
        """What the recorder's variable has to be."""
        self.lines: list[Line] = []
        self.at_step: Callable[[Scheduled], Awaitable[None]] | None = None
        """Called while the engine waits."""

    async def serve(self, peer: SocketStream) -> None:
        """Follow the recorder that has connected, to its end."""
        async with peer:
            received = BufferedByteReceiveStream(peer)
            while True:
                try:
                    line = step_recorder.decode(await received.receive_until(b"\n", _LINE_BYTES))
                except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
                    return
                self.lines.append(line)
                if isinstance(line, Scheduled):
                    if self.at_step is not None:
                        await self.at_step(line)
                    await peer.send(b".")


@asynccontextmanager
async def step_gate() -> AsyncGenerator[StepGate, None]:
    """A gate that an engine started meanwhile connects to."""
    with tempfile.TemporaryDirectory(prefix="steps-") as folder:
        path = Path(folder) / "socket"
        gate = StepGate(f"{step_recorder.SOCKET}{path}")
        async with (
            await anyio.create_unix_listener(path) as listener,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(listener.serve, gate.serve)
            yield gate
            tasks.cancel_scope.cancel()
