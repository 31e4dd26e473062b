"""Calls whose client has no answer yet, and those that wait for a retry to take them over."""

import asyncio
import contextvars
from collections import deque

import anyio

from nnrp_sched.profile import Event
from nnrp_sched_orchestrator.owned_tasks import OwnedTasks
from nnrp_sched_orchestrator.records import ModelResult
from nnrp_sched_orchestrator.stream import Stream

ModelStream = Stream[Event, ModelResult]


class PendingCall:
    """A call from its start to the first that is known of its answer.

    That is the first event of a stream, and the result of a call that is answered whole. A client
    that times out leaves it as it is; one that is cancelled stops it.
    """

    def __init__(self, stream: ModelStream, fingerprint: bytes, *, streamed: bool) -> None:
        """`fingerprint` is the same for requests that ask for the same."""
        self.stream = stream
        self.fingerprint = fingerprint
        self._first: Event | None = None
        # A task of its own: giving up waiting inside a stream is what cancels the stream.
        self._opening = asyncio.get_running_loop().create_task(
            self._open(streamed), name=f"answer of {stream.id}"
        )
        self._opening.add_done_callback(_retrieve)

    async def _open(self, streamed: bool) -> None:
        if streamed:
            self._first = await anext(self.stream, None)
        else:
            await self.stream.result()

    async def answered(self, seconds: float | None) -> bool:
        """Wait for the answer, at most so long; whether it is there.

        Who is cancelled while waiting stops the call, and waits for the proof of that.
        """
        try:
            done, _ = await asyncio.wait({self._opening}, timeout=seconds)
        except BaseException as left:
            await self.stop(f"its client left: {type(left).__name__}")
            raise
        return bool(done)

    async def first_event(self) -> Event | None:
        """The first event of a stream that has answered; None when it ended without one.

        Raises what the call failed with.
        """
        await self._opening
        return self._first

    async def stop(self, reason: str) -> None:
        """Stop the work, unless it has ended, and wait for the proof."""
        with anyio.CancelScope(shield=True):
            await self.stream.cancel(reason)


class Unclaimed:
    """Calls whose clients have timed out: for a while they go on, for a retry to take over.

    Nobody has seen anything of their answers, so whoever asks for the same may have them. One that
    nobody takes over is stopped.
    """

    def __init__(self, seconds: float, limit: int) -> None:
        """Keep up to `limit` calls, each `seconds` long."""
        self._seconds = seconds
        self._limit = limit
        self._calls = deque[PendingCall]()
        self._timers: dict[PendingCall, asyncio.TimerHandle] = {}
        self._stopping = OwnedTasks()

    def __len__(self) -> int:
        return len(self._calls)

    def keeps(self, stream: ModelStream) -> bool:
        """Whether the call of a stream is among them."""
        return any(call.stream is stream for call in self._calls)

    def put(self, call: PendingCall) -> None:
        """Keep a call; the oldest makes room."""
        while len(self._calls) >= self._limit:
            self._stop(self._calls[0], f"{self._limit} others timed out after it")
        self._calls.append(call)
        self._timers[call] = asyncio.get_running_loop().call_later(
            self._seconds,
            self._stop,
            call,
            f"its client timed out, no retry in {self._seconds:g} s",
        )

    def claim(self, fingerprint: bytes) -> PendingCall | None:
        """Take over the oldest call that was asked for the same."""
        for call in self._calls:
            if call.fingerprint == fingerprint:
                self._drop(call)
                return call
        return None

    async def aclose(self) -> None:
        """Stop all of them; every wait in that has a deadline of its own."""
        while self._calls:
            self._stop(self._calls[0], "its client was closed")
        await self._stopping.wait(_CLOSE_SECONDS)

    def _stop(self, call: PendingCall, reason: str) -> None:
        self._drop(call)
        name = f"stopping {call.stream.id}"
        self._stopping.start(call.stop(reason), name, contextvars.copy_context())

    def _drop(self, call: PendingCall) -> None:
        self._calls.remove(call)
        self._timers.pop(call).cancel()


_CLOSE_SECONDS = 15.0
"""More than stopping a stream may take."""


def _retrieve(task: asyncio.Task[None]) -> None:
    """An error is told to who claims the answer; nobody may."""
    if not task.cancelled():
        task.exception()
