"""The order of a tool call's events, as a table of states (seed 003, section 12; digest 4.3).

    per call_id:   started  delta*  ( completed | error )
    between ids:   any interleaving

A call may also begin with its error: that is how a server reports a call whose name never came
(adapter facts 5.3, `invalid_tool_call_stream`).
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from nnrp_sched.errors import ProfileStreamError
from nnrp_sched.profile.events import (
    Event,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallError,
    ToolCallEvent,
    ToolCallStarted,
)


class _State(Enum):
    """Where a call stands; the value completes the sentence "the call …"."""

    ABSENT = "was not started"
    OPEN = "was started already"
    ENDED = "has ended already"


_TRANSITIONS: Final[Mapping[tuple[_State, type[ToolCallEvent]], _State]] = MappingProxyType(
    {
        (_State.ABSENT, ToolCallStarted): _State.OPEN,
        (_State.ABSENT, ToolCallError): _State.ENDED,
        (_State.OPEN, ToolCallDelta): _State.OPEN,
        (_State.OPEN, ToolCallCompleted): _State.ENDED,
        (_State.OPEN, ToolCallError): _State.ENDED,
    }
)
"""Everything that is not in the table is a breach."""


class OpenCall(Struct, frozen=True):
    """A tool call that was started and has not ended."""

    index: int
    item_id: str
    call_id: str
    name: str
    arguments: str
    """What its deltas say so far."""


class _Call(Struct):
    state: _State
    index: int
    item_id: str
    name: str
    pieces: list[str]


class ToolCallGrammar:
    """Watches the events of one operation; knows which tool calls are open.

    It remembers every call of the operation, ended ones without their arguments.
    """

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}

    def observe(self, event: Event) -> None:
        """Take the next event of the operation; events of other kinds are no concern of it.

        Raises `ProfileStreamError` for a breach of the order, for an identity that changed within
        a call and for a completed event that differs from its deltas; the event is then not
        counted.
        """
        if not isinstance(event, ToolCallEvent):
            return
        call = self._calls.get(event.call_id)
        before = _State.ABSENT if call is None else call.state
        after = _TRANSITIONS.get((before, type(event)))
        if after is None:
            raise _breach(event, f"the call {before.value}")
        if call is None:
            name = event.name if isinstance(event, ToolCallStarted) else ""
            call = _Call(after, event.index, event.item_id, name, [])
            self._calls[event.call_id] = call
            return
        _check_identity(call, event)
        call.state = after
        if isinstance(event, ToolCallDelta):
            call.pieces.append(event.arguments_delta)
        elif after is _State.ENDED:
            call.pieces.clear()

    def open_calls(self) -> tuple[OpenCall, ...]:
        """The calls that still need their completed or error, in the order they started."""
        return tuple(
            OpenCall(call.index, call.item_id, call_id, call.name, "".join(call.pieces))
            for call_id, call in self._calls.items()
            if call.state is _State.OPEN
        )


def _check_identity(call: _Call, event: ToolCallEvent) -> None:
    if (event.index, event.item_id) != (call.index, call.item_id):
        raise _breach(event, f"the call was started as {call.item_id!r}, index {call.index}")
    if isinstance(event, ToolCallCompleted):
        if event.name != call.name:
            raise _breach(event, f"the call was started with the name {call.name!r}")
        if event.arguments != "".join(call.pieces):
            raise _breach(event, "the arguments differ from the deltas before")


def _breach(event: ToolCallEvent, fault: str) -> ProfileStreamError:
    return ProfileStreamError(
        f"{event.__struct_config__.tag} for call {event.call_id!r} out of order: {fault}"
    )
