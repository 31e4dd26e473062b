"""The tool loop: ask the model, run the tools it calls, hand their results back, until it is done.

```python
run = agent.run("What does errors.py define?", [read_file, grep])
async for event in run:
    ...
print((await run.result()).text)
```
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import anyio
from msgspec import Struct

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_orchestrator.errors import TurnsExceeded
from nnrp_sched_orchestrator.model_request import checked_messages
from nnrp_sched_orchestrator.records import Receipt, StreamState, StreamStatus
from nnrp_sched_orchestrator.run_records import (
    RunEvent,
    RunResult,
    TurnStarted,
    added_up,
    joint_receipt,
)
from nnrp_sched_orchestrator.stopwatch import Stopwatch
from nnrp_sched_orchestrator.stream import Stream
from nnrp_sched_orchestrator.tool_call import ToolLimits
from nnrp_sched_orchestrator.tool_messages import Message
from nnrp_sched_orchestrator.tools import AsyncTool, Tool, toolbox
from nnrp_sched_orchestrator.turn import RunOwner, Turn
from nnrp_sched_orchestrator.work import Emit

_LEFT_TO_THE_MODEL: Final = (None, "auto", "none")
"""Values of `tool_choice` that force no call."""


class RunSettings(Struct, frozen=True):
    """Bounds of a run."""

    max_turns: int = 16
    """How often the model is asked."""
    tools_at_once: int = 8
    """Tools that run at the same time; further calls wait for their turn."""
    limits: ToolLimits = ToolLimits()
    """Bounds of each tool call."""


class AgentRun:
    """A run of the loop, for a stream. A tool starts as soon as its call is complete."""

    def __init__(
        self,
        stream_id: str,
        owner: RunOwner,
        messages: str | Iterable[Mapping[str, Any]],
        tools: Iterable[Tool | AsyncTool] | Mapping[str, Tool] = (),
        *,
        settings: RunSettings | None = None,
        **options: Any,
    ) -> None:
        """`owner` is the agent; `options` go to each of its model calls.

        A `tool_choice` that forces a call does so until one was made.

        Raises `ToolDefinitionError` for what cannot be a tool, and `ValueError` for several answers
        at once (`n`), which the loop cannot follow.
        """
        if options.get("n", 1) != 1:
            raise ValueError(f"n={options['n']!r}: a run follows one answer; start several runs")
        self._id = stream_id
        self._owner = owner
        self._settings = settings or RunSettings()
        self._tools = toolbox(tools)
        self._options = options
        self._messages = _begun(messages)
        self._turns: list[Turn] = []
        self._watch = Stopwatch()
        self._places = anyio.Semaphore(self._settings.tools_at_once)
        self._receipt: Receipt | None = None

    async def run(self, emit: Emit[RunEvent]) -> RunResult:
        """Loop until an answer calls no tool.

        Raises `TurnsExceeded` when none came in time, and what a model call raises; the transcript
        is in the stream's `partial` then.
        """
        order = anyio.Lock()

        async def ordered(event: RunEvent) -> None:
            async with order:  # Several tools, and the model, have something to say at once.
                self._watch.event()
                await emit(event)

        self._watch.submit()
        for number in range(1, self._settings.max_turns + 1):
            if not await self._turn(number, ordered):
                self._watch.finish()
                return self.partial("completed", None)
        raise TurnsExceeded(self._settings.max_turns)

    async def _turn(self, number: int, emit: Emit[RunEvent]) -> bool:
        """One turn; whether there is to be another."""
        options: dict[str, Any] = {"step": number, **self._options}
        if self._called and options.get("tool_choice") not in _LEFT_TO_THE_MODEL:
            # As in the OpenAI Agents SDK (`reset_tool_choice`): else no answer could end the run.
            options["tool_choice"] = "auto"
        if self._tools:
            options["tools"] = [tool.definition for tool in self._tools.values()]
        model = self._owner.chat(self._transcript, **options)
        limits = self._settings.limits
        turn = Turn(self._owner, model, self._tools, limits, self._places, emit)
        self._turns.append(turn)
        await emit(TurnStarted(number, model.id))
        await turn.run()
        if turn.failure is not None:
            raise turn.failure
        return bool(turn.calls)

    async def stop(self, reason: str) -> Receipt:
        """Stop the model call and the tools of the last turn; one receipt of them all."""
        self._watch.finish()
        receipts: list[Receipt] = []

        async def end(stream: Stream[Any, Any]) -> None:
            receipts.append(await stream.cancel(reason))

        async with anyio.create_task_group() as tasks:
            for stream in self._turns[-1].streams if self._turns else ():
                if stream.partial.status != "completed":
                    tasks.start_soon(end, stream)
        self._receipt = joint_receipt(self._id, receipts, reason)
        return self._receipt

    def partial(self, status: StreamStatus, error: NnrpSchedError | None) -> RunResult:
        """What there is so far; its transcript is valid at any time."""
        answers = [turn.model.partial for turn in self._turns]
        return RunResult(
            status,
            text=answers[-1].text if answers else "",
            messages=tuple(self._transcript),
            turns=len(self._turns),
            calls=tuple(call for turn in self._turns for call in turn.calls),
            usage=added_up(answer.usage for answer in answers),
            error=error,
            receipt=self._receipt,
            timings=self._watch.timings,
        )

    @property
    def state(self) -> StreamState:
        """Where it stands: as its model call does, or waiting for its tools."""
        if not self._turns:
            return StreamState("admitting")
        turn = self._turns[-1]
        return StreamState("waiting_for_tool") if turn.waiting else turn.model.state

    @property
    def _called(self) -> bool:
        """Whether a tool was called already."""
        return any(turn.calls for turn in self._turns)

    @property
    def _transcript(self) -> list[Message]:
        return [*self._messages, *(each for turn in self._turns for each in turn.messages)]


def _begun(messages: str | Iterable[Mapping[str, Any]]) -> Sequence[Message]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if isinstance(messages, Mapping):
        raise TypeError(
            "a run begins with messages, not with a whole chat body: give body['messages'], and "
            "its other members by name"
        )
    return checked_messages(messages)
