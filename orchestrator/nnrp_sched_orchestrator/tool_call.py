"""One call of a tool within its limits: whatever the tool does, that is an answer."""

import asyncio
import logging
from typing import Final

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct

from nnrp_sched.profile.scheduling import AbortReceipt
from nnrp_sched.profile.tools import ToolAnswer
from nnrp_sched_orchestrator.errors import ToolFailed
from nnrp_sched_orchestrator.tools import EmitOutput, Tool, ToolEnd, ToolRun

logger = logging.getLogger(__name__)


class ToolLimits(Struct, frozen=True):
    """Bounds of one call."""

    output_bytes: int = 65_536
    """How much output is handed on, in bytes of UTF-8; what comes after that is left out."""
    excess: float = 64.0
    """A tool that puts out more than so many times that is stopped."""
    seconds: float = 120.0
    """How long it may run."""

    @property
    def most_bytes(self) -> float:
        """What it may put out in all before it is stopped."""
        return max(self.output_bytes, _LEAST_BYTES) * self.excess

    def within(self, output_bytes: int | None, seconds: float | None) -> "ToolLimits":
        """The smaller ones of these and a caller's."""
        return ToolLimits(
            min(self.output_bytes, self.output_bytes if output_bytes is None else output_bytes),
            self.excess,
            min(self.seconds, self.seconds if seconds is None else seconds),
        )


_LEAST_BYTES: Final = 4096
"""Who wants little output does not mean to end a tool for a few lines."""


_LONGEST_MESSAGE: Final = 2000


class _TooMuch(Exception):
    """The tool puts out more than it may."""


class BoundedCall:
    """A call that has not begun, runs, or has ended."""

    def __init__(self, tool: Tool, arguments: str, limits: ToolLimits) -> None:
        """`arguments` is JSON text, as the model wrote it."""
        self._tool = tool
        self._arguments = arguments
        self._limits = limits
        self._run: ToolRun | None = None
        self._produced = 0
        self._handed_on = 0
        self._emit_failure: BaseException | None = None

    @property
    def endpoint(self) -> str | None:
        """Where the tool runs, once it does; None: in this process or below it."""
        return None if self._run is None else self._run.endpoint

    async def run(self, emit: EmitOutput) -> ToolAnswer:
        """Run the tool; raises only what `emit` does. When cancelled, the tool is stopped."""

        async def take(text: str) -> None:
            await self._take(text, emit)

        seconds = self._limits.seconds
        late = f"it was stopped: it had not ended after {seconds:g} s"
        scope = anyio.CancelScope(deadline=anyio.current_time() + seconds)
        try:
            with scope:
                self._run = self._tool.start(self._arguments)
                return self._answer(await self._run.run(take))
        except _TooMuch:
            most = self._limits.most_bytes
            return self._failed(f"it was stopped: it had put out more than {most:.0f} bytes")
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if error is self._emit_failure or _is_our_cancellation(error):
                raise
            if not isinstance(error, ToolFailed):
                logger.info("tool %s failed", self._tool.name, exc_info=error)
            return self._failed(late if scope.cancel_called else _told(error))
        return self._failed(late)

    async def stop(self, reason: str) -> AbortReceipt:
        """What became of the tool, once `run` was cancelled."""
        if self._run is None:
            return AbortReceipt(self._tool.name, "admitting", True, True, None, 0.0)
        return await self._run.stop(reason)

    async def _take(self, text: str, emit: EmitOutput) -> None:
        data = text.encode(errors="replace")
        kept = data[: max(0, self._limits.output_bytes - self._produced)]
        self._produced += len(data)
        if self._produced > self._limits.most_bytes:
            raise _TooMuch
        shown = kept.decode(errors="ignore")  # A character that is cut is left out whole.
        if not shown:
            await checkpoint()  # A tool that goes on saying nothing can be stopped here.
            return
        self._handed_on += len(shown.encode())
        try:
            await emit(shown)
        except BaseException as error:
            # It goes through the tool's code, and is no failure of the tool.
            self._emit_failure = error
            raise

    def _answer(self, end: ToolEnd) -> ToolAnswer:
        # A remote tool's output was cut at its host already: that knows how much there was.
        produced = max(self._produced, end.output_bytes or 0)
        return ToolAnswer(
            "failed" if end.failure else "completed",
            message=end.failure,
            output_bytes=produced,
            dropped_bytes=produced - self._handed_on,
            exit_code=end.exit_code,
            stderr=end.stderr,
        )

    def _failed(self, message: str) -> ToolAnswer:
        return self._answer(ToolEnd(failure=message))


def _is_our_cancellation(error: BaseException) -> bool:
    """Whether this task is being cancelled; if not, a CancelledError is the tool's own."""
    task = asyncio.current_task()
    cancelled = task is not None and task.cancelling() > 0
    return cancelled and isinstance(error, asyncio.CancelledError)


def _only(error: BaseException) -> BaseException | None:
    """The one error in a group."""
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return inner[0] if isinstance(error, BaseExceptionGroup) and len(inner) == 1 else None


def _told(error: BaseException) -> str:
    """What a model is told of an error: of a group of one, that one."""
    while (inner := _only(error)) is not None:
        error = inner
    text = str(error) if isinstance(error, ToolFailed) else f"{type(error).__name__}: {error}"
    # Names of files, say, may have what is no text.
    return text[:_LONGEST_MESSAGE].encode(errors="replace").decode()
