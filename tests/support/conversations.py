"""Models that say one thing after another, as the transcript grows."""

from collections.abc import AsyncGenerator, Iterable
from typing import Any

import msgspec

from nnrp_sched.engine.records import ChatBody, ChatCall
from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile import Event
from nnrp_sched.profile.json_values import is_object
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.answer import Answer
from nnrp_sched_orchestrator.records import (
    ModelResult,
    Receipt,
    StreamState,
    StreamStatus,
    StreamTimings,
)
from nnrp_sched_orchestrator.work import Emit
from tests.support.stepped_engine import SteppedEngine


class Conversing(SteppedEngine):
    """Plays, of the scripts in the body's `turns`, the one whose turn it is."""

    async def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """Find the script by how often the model has answered."""
        messages = [each for each in call.body["messages"] if is_object(each)]
        turn = sum(each.get("role") == "assistant" for each in messages)
        body = {**call.body, "scripted": call.body["turns"][turn]}
        async for chunk in super().stream(msgspec.structs.replace(call, body=body)):
            yield chunk


def conversing() -> tuple[Conversing, ServerLimits]:
    """A server's engine and limits."""
    return Conversing(), ServerLimits()


def calls(*each: tuple[str, str], **members: Any) -> dict[str, Any]:
    """A script that calls tools: names and arguments."""
    made = [
        {"name": name, "arguments": arguments, "id": f"call-{name}-{at}"}
        for at, (name, arguments) in enumerate(each)
    ]
    return {"tool_calls": made, **members}


def says(text: str, **members: Any) -> dict[str, Any]:
    """A script that answers."""
    return {"text": text, **members}


class EventsWork:
    """A model call that is these events, whatever server they might come from."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = list(events)
        self._answer = Answer()

    async def run(self, emit: Emit[Event]) -> ModelResult:
        """Tell them."""
        for event in self._events:
            self._answer.take(event)
            await emit(event)
        return self.partial("completed", None)

    async def stop(self, reason: str) -> Receipt:
        """There is nothing to stop."""
        return Receipt("events", accepted=True, reason=reason)

    def partial(self, status: StreamStatus, error: NnrpSchedError | None) -> ModelResult:
        """What was told."""
        return self._answer.result(status, error, None, StreamTimings(0.0))

    @property
    def state(self) -> StreamState:
        """It runs."""
        return StreamState("running")
