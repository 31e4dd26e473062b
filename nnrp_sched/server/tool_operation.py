"""A tool call as an operation: one task, one terminal, and on a cancel the tool's receipt."""

import asyncio
import logging
import time
from collections.abc import Callable

import anyio
import anyio.lowlevel
import msgspec

from nnrp_sched.engine.tool_port import HostedCall
from nnrp_sched.profile import Completed, encode_event, profile_error
from nnrp_sched.profile.events import ToolOutputDelta, ToolStopped
from nnrp_sched.profile.scheduling import AbortReceipt
from nnrp_sched.server.cancellation import is_our_cancellation
from nnrp_sched.server.ending import OVERRIDING, Asked, Ending, Silent
from nnrp_sched.server.terminal import FAULT, OperationChannel, Verdict, send_verdict, verdict
from nnrp_sched.server.time_limits import TimeLimits
from nnrp_sched.wire import TraceContext

logger = logging.getLogger(__name__)


class ToolOperation:
    """The life of one `tools.call`."""

    endless = False
    """The host bounds it in time."""

    def __init__(
        self,
        name: str,
        call: HostedCall,
        channel: OperationChannel,
        *,
        stop_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` is the id users see; a tool has `stop_seconds` to be gone when it is stopped."""
        self._name = name
        self._call = call
        self._channel = channel
        self._stop_seconds = stop_seconds
        self._clock = clock
        self._scope = anyio.CancelScope()
        self._wanted = anyio.Event()
        """Somebody wants it to end, or it has ended."""
        self._over = anyio.Event()
        """The tool has ended."""
        self._outcome: Verdict = Silent()
        self._ending: Ending | None = None
        self._diagnostic = ""
        self._stopped_at = 0.0
        self.times = TimeLimits(self.stop)

    def stop(self, ending: Ending, diagnostic: str = "", asked: Asked | None = None) -> None:
        """Stop the tool; the terminal follows once it is gone. What has ended stays as it ended."""
        if self._over.is_set() and ending not in OVERRIDING:
            return
        if self._ending is None:
            self._stopped_at = self._clock()
        if self._ending is None or ending in OVERRIDING:
            self._ending, self._diagnostic = ending, diagnostic
        if ending is Ending.ABORT:
            self._channel.mute()
        else:
            self._channel.discard()
        self._scope.cancel()
        self._wanted.set()

    def take_trace(self, context: TraceContext) -> None:
        """Nothing: no engine call, no span."""

    async def run(self) -> None:
        """Run the tool and send the terminal.

        A tool that does not heed its cancellation keeps its place, not its caller.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._work)
            await self._wanted.wait()
            with anyio.move_on_after(self._stop_seconds):
                await self._over.wait()
            await self._tell()

    async def _work(self) -> None:
        try:
            with self._scope:
                self._outcome = await self._answer()
        finally:
            self._over.set()
            self._wanted.set()

    async def _answer(self) -> Verdict:
        try:
            return Completed(body=msgspec.to_builtins(await self._call.run(self._emit)))
        except (Exception, asyncio.CancelledError) as error:
            # As for chats: foreign code must not take the connection down.
            if is_our_cancellation(error):
                raise
            logger.exception("tool call %s failed inside the server", self._name)
            return profile_error("adapter_runtime_error", FAULT)

    async def _emit(self, output: str) -> None:
        if self._ending is None:
            self._channel.send_partial(encode_event(ToolOutputDelta(output)))
        if self._channel.full and not await self._channel.room():
            self.stop(Ending.SLOW_READER)
            await anyio.lowlevel.checkpoint()

    async def _tell(self) -> None:
        if self._ending is None and self._channel.waiting and not await self._channel.flushed():
            self._ending = Ending.SLOW_READER
        final = verdict(self._outcome, self._ending, self._diagnostic)
        if self._ending is Ending.CANCEL and isinstance(self._outcome, Completed):
            final = self._outcome  # It was over before the cancel reached it.
        elif self._ending is not None:
            self._channel.send_partial(encode_event(ToolStopped(await self._receipt())))
        send_verdict(self._channel, final)

    async def _receipt(self) -> AbortReceipt:
        assert self._ending is not None
        found = AbortReceipt(self._name, "running", False, False, None, 0.0)
        if self._over.is_set():
            found = await self._stopped(self._ending.value) or found
        else:
            logger.error(
                "tool call %s still runs %g s after its cancellation",
                self._name,
                self._stop_seconds,
            )
        latency = (self._clock() - self._stopped_at) * 1000
        receipt = msgspec.structs.replace(found, request_id=self._name, latency_ms=latency)
        logger.info("tool call %s stopped: %s", self._name, receipt)
        return receipt

    async def _stopped(self, reason: str) -> AbortReceipt | None:
        try:
            with anyio.move_on_after(self._stop_seconds):
                return await self._call.stop(reason)
            logger.error("tool call %s: its host did not say whether it is gone", self._name)
        except (Exception, asyncio.CancelledError) as error:
            # The call ends without an authoritative receipt, and says so here.
            if is_our_cancellation(error):
                raise
            logger.exception("tool call %s: its host failed over its end", self._name)
        return None


class Answered:
    """An operation whose answer is known when it comes."""

    endless = False
    """It has ended as good as it began."""

    def __init__(self, answer: Completed, channel: OperationChannel) -> None:
        self._answer = answer
        self._channel = channel
        self._ending: Ending | None = None
        self._diagnostic = ""
        self.times = TimeLimits(self.stop)

    def stop(self, ending: Ending, diagnostic: str = "", asked: Asked | None = None) -> None:
        """End it otherwise; the first reason counts, unless the session goes away under it."""
        if self._ending is None or ending in OVERRIDING:
            self._ending, self._diagnostic = ending, diagnostic

    def take_trace(self, context: TraceContext) -> None:
        """Nothing: no engine call, no span."""

    async def run(self) -> None:
        """Send the terminal."""
        send_verdict(self._channel, verdict(self._answer, self._ending, self._diagnostic))
