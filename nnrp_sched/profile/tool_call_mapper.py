"""Turns the tool-call deltas of chat chunks into the four tool-call events (digest 4.3)."""

from itertools import chain, count

from msgspec import Struct, field

from nnrp_sched.errors import ProfileStreamError
from nnrp_sched.profile.assembly import fallback_call_id
from nnrp_sched.profile.errors import error_object
from nnrp_sched.profile.events import (
    Event,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallError,
    ToolCallEvent,
    ToolCallStarted,
)
from nnrp_sched.profile.json_values import is_json, is_object, is_position
from nnrp_sched.profile.tool_calls import ToolCallGrammar
from nnrp_sched.profile.tool_positions import parts


class _Call(Struct):
    choice: int
    tool: int
    item_id: str
    engine_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    """All arguments so far; until the start they are withheld."""
    call_id: str = ""
    """Set by the start, or by an end without one."""
    ended: bool = False


class ToolCallMapper:
    """Follows the tool calls of one stream, each by its choice and position.

    A call's start is withheld until its name and its id are known, its arguments with it; a call
    that ends without an id gets a made-up one. The first name and the first id count. Of two calls
    with the same id the second gets a made-up one: models whose ids are `functions.name:0` repeat
    them in every choice, and an operation must not have the same id twice.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int], _Call] = {}
        self._call_ids: set[str] = set()
        self._grammar = ToolCallGrammar()

    def delta(self, choice: int, entry: object, events: list[Event]) -> None:
        """Take one entry of a delta's `tool_calls`; what is malformed in it is passed over.

        Raises `ProfileStreamError` when the call has ended or changes its name.
        """
        if not is_object(entry):
            return
        tool = entry.get("index")
        engine_id, name, arguments = parts(entry)
        if not is_position(tool) or not (engine_id or name or arguments):
            return
        call = self._calls.get((choice, tool))
        if call is None:
            call = _Call(choice, tool, f"tool-call-{choice}-{tool}")
            self._calls[choice, tool] = call
        if name and call.name and name != call.name:
            raise ProfileStreamError(
                f"the engine renamed tool call {tool} of choice {choice} from "
                f"{call.name!r} to {name!r}"
            )
        call.name = call.name or name
        call.engine_id = call.engine_id or engine_id
        if arguments:
            call.pieces.append(arguments)
        if call.call_id:
            if arguments:
                self._emit(_delta(call, arguments), events)
        elif call.name and call.engine_id:
            self._start(call, events)

    def end_choice(self, choice: int, events: list[Event]) -> None:
        """End what is open of a choice whose finish_reason came."""
        self._end([call for call in self._open() if call.choice == choice], events)

    def end_all(self, events: list[Event]) -> None:
        """End what is open when the stream ends."""
        self._end(self._open(), events)

    def interrupt(self, code: str, message: str) -> list[Event]:
        """End every started call with this error; one that did not start is dropped unseen."""
        events: list[Event] = []
        for call in self._open():
            call.ended = True
            if call.call_id:
                self._emit(_error(call, code, message), events)
        return events

    def _open(self) -> list[_Call]:
        return [call for _, call in sorted(self._calls.items()) if not call.ended]

    def _end(self, calls: list[_Call], events: list[Event]) -> None:
        for call in calls:
            if not call.call_id and call.name:
                self._start(call, events)
            call.ended = True
            self._emit(self._last_event(call), events)

    def _last_event(self, call: _Call) -> ToolCallEvent:
        if not call.name:
            call.call_id = self._unique_id(call)
            message = "The tool call ended without a function name."
            return _error(call, "invalid_tool_call_stream", message)
        arguments = "".join(call.pieces)
        if arguments and not is_json(arguments):
            message = "The tool call's arguments end before they are complete JSON."
            return _error(call, "tool_call_incomplete", message)
        return ToolCallCompleted(call.tool, call.item_id, call.call_id, call.name, arguments)

    def _start(self, call: _Call, events: list[Event]) -> None:
        call.call_id = self._unique_id(call)
        self._emit(ToolCallStarted(call.tool, call.item_id, call.call_id, call.name), events)
        if call.pieces:
            self._emit(_delta(call, "".join(call.pieces)), events)

    def _unique_id(self, call: _Call) -> str:
        fallback = fallback_call_id(call.choice, call.tool)
        candidates = chain(
            (call.engine_id or fallback, fallback), (f"{fallback}-{n}" for n in count(2))
        )
        call_id = next(candidate for candidate in candidates if candidate not in self._call_ids)
        self._call_ids.add(call_id)
        return call_id

    def _emit(self, event: ToolCallEvent, events: list[Event]) -> None:
        self._grammar.observe(event)
        events.append(event)


def _delta(call: _Call, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(call.tool, call.item_id, call.call_id, arguments)


def _error(call: _Call, code: str, message: str) -> ToolCallError:
    return ToolCallError(call.tool, call.item_id, call.call_id, error_object(code, message))
