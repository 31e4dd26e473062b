"""One turn of a run: the model's answer, and the tools it calls while it still streams."""

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import anyio
from anyio.abc import TaskGroup

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile import (
    Event,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallError,
    ToolCallStarted,
)
from nnrp_sched.profile.json_values import is_array, is_object
from nnrp_sched.transport import background_tasks
from nnrp_sched_orchestrator.growing_object import GrowingObject
from nnrp_sched_orchestrator.records import ModelResult, ToolCall
from nnrp_sched_orchestrator.run_records import RunEvent
from nnrp_sched_orchestrator.stream import Stream
from nnrp_sched_orchestrator.tool_call import ToolLimits
from nnrp_sched_orchestrator.tool_messages import (
    Message,
    assistant_message,
    cut_content,
    tool_message,
)
from nnrp_sched_orchestrator.tool_stream import (
    ToolEvent,
    ToolFinished,
    ToolResult,
    ToolWork,
    refused,
)
from nnrp_sched_orchestrator.tools import Tool
from nnrp_sched_orchestrator.work import Emit

MAX_CALLS: Final = 128
"""Tool calls of one answer; further ones are refused."""


class RunOwner(Protocol):
    """The agent, as its runs see it."""

    def chat(self, messages: Any, **options: Any) -> Stream[Event, ModelResult]:
        """Ask the model."""
        ...

    def new_id(self) -> str:
        """An id for a stream."""
        ...

    def start(
        self, work: ToolWork, *, kind: Literal["tool"], name: str, stream_id: str
    ) -> Stream[ToolEvent, ToolResult]:
        """Have a tool called, in a stream of its own."""
        ...


class _Slot:
    """A tool call of the answer, and what becomes of it."""

    def __init__(self, index: int, call_id: str, name: str) -> None:
        self.call = ToolCall(index, call_id, name, "")
        self.arguments = GrowingObject()
        self.complete = False
        """Whether it is known what is called, or why nothing can be."""
        self.stream: Stream[ToolEvent, ToolResult] | None = None
        self.refusal: ToolResult | None = None
        self.over = anyio.Event()

    @property
    def result(self) -> ToolResult | None:
        """What has come of it so far."""
        return self.stream.partial if self.stream is not None else self.refusal

    @property
    def message(self) -> Message:
        """Its answer in the transcript, whatever has become of it."""
        if self.result is not None:
            return self.result.message
        return tool_message(self.call, cut_content("", "it had not begun"))


class Turn:
    """What one answer of the model leads to."""

    def __init__(
        self,
        owner: RunOwner,
        model: Stream[Event, ModelResult],
        tools: Mapping[str, Tool],
        limits: ToolLimits,
        places: anyio.Semaphore,
        emit: Emit[RunEvent],
    ) -> None:
        """`model` is the call whose answer it is about.

        `places` bounds how many tools run at once; each event goes to `emit`, in order.
        """
        self.model = model
        self._owner = owner
        self._tools = tools
        self._limits = limits
        self._places = places
        self._emit = emit
        self._slots: dict[str, _Slot] = {}
        self.waiting = False
        """Whether the model has answered, and tools still run."""
        self.failure: NnrpSchedError | None = None
        """Why a tool could not be started, though there is one."""

    async def run(self) -> None:
        """Read the answer and run its tools; raises what the model call ends with."""
        model = self.model
        async with background_tasks() as tasks:
            async with model:
                async for event in model:
                    await self._emit(event)
                    self._take(event, tasks)
            self._take_whole(model.partial, tasks)
            self.waiting = True
            for slot in list(self._slots.values()):
                await slot.over.wait()
            self.waiting = False

    # --- what came of it ------------------------------------------------------------------------

    @property
    def streams(self) -> tuple[Stream[Any, Any], ...]:
        """The model's and the tools'."""
        tools = (slot.stream for slot in self._slots.values() if slot.stream is not None)
        return (self.model, *tools)

    @property
    def calls(self) -> tuple[ToolResult, ...]:
        """What came of its calls, in their order."""
        return tuple(slot.result for slot in self._ordered if slot.result is not None)

    @property
    def messages(self) -> list[Message]:
        """The answer and those to its calls, as they go into a transcript."""
        text = self.model.partial.text
        slots = self._ordered
        if not text and not slots:
            return []
        said = assistant_message(text, [slot.call for slot in slots])
        return [said, *(slot.message for slot in slots)]

    @property
    def _ordered(self) -> list[_Slot]:
        # A server that gives every call index 0 means the order in which they came (T49).
        known = [slot for slot in self._slots.values() if slot.complete]
        return sorted(known, key=lambda slot: slot.call.index)

    # --- its tools ------------------------------------------------------------------------------

    def _take(self, event: Event, tasks: TaskGroup) -> None:
        match event:
            case ToolCallStarted(index=index, call_id=call_id, name=name):
                self._slots[call_id] = _Slot(index, call_id, name)
            case ToolCallDelta(index=index, call_id=call_id, arguments_delta=piece):
                slot = self._slots.get(call_id)
                if slot is not None and slot.arguments.add(piece):
                    # Servers tell the end of a call only with the end of the whole answer.
                    arguments = slot.arguments.text
                    self._begin(ToolCall(index, call_id, slot.call.name, arguments), None, tasks)
            case ToolCallCompleted(index=index, call_id=call_id, name=name, arguments=arguments):
                self._begin(ToolCall(index, call_id, name, arguments), None, tasks)
            case ToolCallError(index=index, call_id=call_id, error=error):
                slot = self._slots.get(call_id)
                name = slot.call.name if slot is not None else "unknown"
                self._begin(ToolCall(index, call_id, name, ""), error.message, tasks)
            case _:
                pass

    def _take_whole(self, answer: ModelResult, tasks: TaskGroup) -> None:
        """Calls of an answer that came whole, without events of its calls."""
        if self._slots or answer.body is None:
            return
        for index, entry in enumerate(_called(answer.body)):
            function = entry.get("function")
            members = function if is_object(function) else {}
            call_id, name = str(entry.get("id") or f"call-{index}"), str(members.get("name") or "")
            arguments = str(members.get("arguments") or "")
            self._begin(ToolCall(index, call_id, name or "unknown", arguments), None, tasks)

    def _begin(self, call: ToolCall, why_not: str | None, tasks: TaskGroup) -> None:
        slot = self._slots.setdefault(call.call_id, _Slot(call.index, call.call_id, call.name))
        if slot.complete:
            return
        slot.call, slot.complete = call, True
        tool = self._tools.get(call.name)
        if why_not is None and len(self._slots) > MAX_CALLS:
            why_not = f"more than {MAX_CALLS} tool calls in one answer; make fewer"
        if why_not is None and tool is None:
            there_are = ", ".join(self._tools) or "none"
            why_not = f"there is no tool {call.name!r}; there are: {there_are}"
        if why_not is not None or tool is None:
            slot.refusal = refused(call, why_not or "")
        tasks.start_soon(self._serve, slot, tool)

    async def _serve(self, slot: _Slot, tool: Tool | None) -> None:
        try:
            if slot.refusal is None and tool is not None:
                async with self._places:
                    await self._call(slot, tool)
            if slot.refusal is not None:
                await self._emit(ToolFinished(slot.call.call_id, slot.refusal))
        finally:
            slot.over.set()

    async def _call(self, slot: _Slot, tool: Tool) -> None:
        try:
            stream_id = self._owner.new_id()
            work = ToolWork(stream_id, tool, slot.call, self._limits)
            slot.stream = self._owner.start(work, kind="tool", name=tool.name, stream_id=stream_id)
        except NnrpSchedError as error:
            # The agent may start nothing more: the other calls still end, then the run does.
            self.failure = self.failure or error
            slot.refusal = refused(slot.call, f"it could not be started: {error}")
            return
        await self._follow(slot.call.call_id, slot.stream)

    async def _follow(self, call_id: str, stream: Stream[ToolEvent, ToolResult]) -> None:
        finished = False
        try:
            async with stream:
                async for event in stream:
                    finished = finished or isinstance(event, ToolFinished)
                    await self._emit(event)
        except NnrpSchedError:
            # How it ended is in its result, and is the model's to know.
            pass
        if not finished:
            await self._emit(ToolFinished(call_id, stream.partial))


def _called(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The tool calls of a chat.completion's first choice."""
    choices = body.get("choices")
    first = choices[0] if is_array(choices) and choices else None
    message = first.get("message") if is_object(first) else None
    calls = message.get("tool_calls") if is_object(message) else None
    return [call for call in calls if is_object(call)] if is_array(calls) else []
