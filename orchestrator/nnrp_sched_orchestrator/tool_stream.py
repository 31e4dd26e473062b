"""A tool call as the work of a stream: its events, its result, the proof of its end."""

from typing import Any

import msgspec
from msgspec import Struct

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile.tools import ToolAnswer
from nnrp_sched_orchestrator.errors import ToolFailed
from nnrp_sched_orchestrator.records import (
    Receipt,
    ReceiptState,
    StreamState,
    StreamStatus,
    StreamTimings,
    ToolCall,
)
from nnrp_sched_orchestrator.stopwatch import Stopwatch
from nnrp_sched_orchestrator.tool_call import BoundedCall, ToolLimits
from nnrp_sched_orchestrator.tool_messages import (
    Message,
    answer_content,
    cut_content,
    tool_message,
)
from nnrp_sched_orchestrator.tools import Tool
from nnrp_sched_orchestrator.work import Emit


class ToolResult(Struct, frozen=True):
    """What came of a tool call; of one that was cut short, what there was."""

    status: StreamStatus
    call: ToolCall
    message: Message
    """What the model is told: a well-formed message, whatever became of the call."""
    text: str = ""
    """Its output, as far as the limits let it through."""
    answer: ToolAnswer | None = None
    """How it ended, when it did so by itself."""
    error: NnrpSchedError | None = None
    receipt: Receipt | None = None
    timings: StreamTimings = StreamTimings(0.0)
    usage: dict[str, Any] | None = None
    """Always None: tools have no tokens."""


class ToolStarted(Struct, frozen=True):
    """A tool is called."""

    call_id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


class ToolOutput(Struct, frozen=True):
    """A piece of what a tool puts out."""

    call_id: str
    text: str


class ToolFinished(Struct, frozen=True):
    """A call is over. Of one that could not be made at all this is the only event."""

    call_id: str
    result: ToolResult


ToolEvent = ToolStarted | ToolOutput | ToolFinished


class ToolWork:
    """One call of a tool, for a stream to run."""

    def __init__(
        self, stream_id: str, tool: Tool, call: ToolCall, limits: ToolLimits | None = None
    ) -> None:
        """`call` is what the model, or a program, asked for."""
        self._id = stream_id
        self._call = call
        self._bounded = BoundedCall(tool, call.arguments, limits or ToolLimits())
        self._watch = Stopwatch()
        self._text: list[str] = []
        self._answer: ToolAnswer | None = None
        self._receipt: Receipt | None = None
        self._running = False

    async def run(self, emit: Emit[ToolEvent]) -> ToolResult:
        """Call the tool. Raises `ToolFailed` when it has failed, after its `ToolFinished`."""

        async def take(text: str) -> None:
            self._watch.event()
            self._text.append(text)
            await emit(ToolOutput(self._call.call_id, text))

        self._running = True
        self._watch.submit()
        await emit(ToolStarted(self._call.call_id, self._call.name, self._call.arguments))
        answer = self._answer = await self._bounded.run(take)
        self._watch.finish()
        self._receipt = await self._proof()
        failure = ToolFailed(answer.message) if answer.status == "failed" else None
        result = self.partial("completed" if failure is None else "failed", failure)
        await emit(ToolFinished(self._call.call_id, result))
        if failure is not None:
            raise failure
        return result

    async def stop(self, reason: str) -> Receipt:
        """The proof: of a process, that none of its group is left; of a remote call, its host's."""
        self._watch.finish()
        if self._receipt is None:
            self._receipt = await self._proof()
        self._receipt = msgspec.structs.replace(self._receipt, reason=reason)
        return self._receipt

    async def _proof(self) -> Receipt:
        told = await self._bounded.stop("")
        endpoint = self._bounded.endpoint
        state: ReceiptState = "local" if endpoint is None else told.state
        if self._answer is not None:
            state = "finished" if told.authoritative else "unknown"
        return Receipt(
            self._id,
            operation=None if endpoint is None else told.request_id or None,
            endpoint=endpoint,
            state=state,
            accepted=told.accepted and self._answer is None,
            authoritative=told.authoritative,
            latency_ms=told.latency_ms,
            unconfirmed=None if told.authoritative else _unconfirmed(endpoint),
        )

    def partial(self, status: StreamStatus, error: NnrpSchedError | None) -> ToolResult:
        """What there is so far."""
        text = "".join(self._text)
        return ToolResult(
            status,
            self._call,
            tool_message(self._call, self._content(text, error)),
            text=text,
            answer=self._answer,
            error=error,
            receipt=self._receipt,
            timings=self._watch.timings,
        )

    def _content(self, text: str, error: NnrpSchedError | None) -> str:
        if self._answer is not None:
            return answer_content(text, self._answer)
        why = self._receipt.reason if self._receipt is not None else ""
        return cut_content(text, why if error is None else str(error))

    @property
    def state(self) -> StreamState:
        """Where it stands."""
        return StreamState("running" if self._running else "admitting")


def refused(call: ToolCall, why: str) -> ToolResult:
    """The result of a call that cannot be made."""
    watch = Stopwatch()
    watch.finish()
    answer = ToolAnswer("failed", message=why)
    return ToolResult(
        "failed",
        call,
        tool_message(call, answer_content("", answer)),
        answer=answer,
        error=ToolFailed(why),
        timings=watch.timings,
    )


def _unconfirmed(endpoint: str | None) -> str:
    if endpoint is None:
        return "some of its processes outlived SIGKILL"
    return f"its host, {endpoint}, did not say that the tool is gone"
