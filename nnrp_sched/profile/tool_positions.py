"""Tells tool calls apart that an engine gives the same index.

There are engines that say index 0 of every parallel call. A chunk that begins another call, with an
id and a name of its own, while the one at that index is complete already, means a further call; it
gets the next free position. Everybody downstream, clients that merge by index among them, then sees
as many calls as there are.
"""

from msgspec import Struct, field

from nnrp_sched.profile.json_values import (
    JsonObject,
    is_array,
    is_json_object,
    is_object,
    is_position,
)


class _Call(Struct):
    position: int
    engine_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])


class ToolPositions:
    """The positions of the tool calls of one stream."""

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int], _Call] = {}
        """By choice and index: the call that the engine means by it now."""
        self._taken: set[tuple[int, int]] = set()
        """The positions that are given, each with its choice."""

    def placed(self, chunk: JsonObject) -> JsonObject:
        """The chunk with each tool call at its position: itself, where that changes nothing."""
        choices = chunk.get("choices")
        if not is_array(choices):
            return chunk
        placed = [self._choice(choice) for choice in choices]
        if all(new is old for new, old in zip(placed, choices, strict=True)):
            return chunk
        return {**chunk, "choices": placed}

    def _choice(self, choice: object) -> object:
        if not is_object(choice) or not is_position(choice.get("index")):
            return choice
        delta = choice.get("delta")
        entries = delta.get("tool_calls") if is_object(delta) else None
        if not is_object(delta) or not is_array(entries):
            return choice
        placed = [self._entry(choice["index"], entry) for entry in entries]
        if all(new is old for new, old in zip(placed, entries, strict=True)):
            return choice
        return {**choice, "delta": {**delta, "tool_calls": placed}}

    def _entry(self, choice: int, entry: object) -> object:
        if not is_object(entry) or not is_position(entry.get("index")):
            return entry
        index: int = entry["index"]
        engine_id, name, arguments = parts(entry)
        call = self._calls.get((choice, index))
        if call is None or _begins_another(call, engine_id, name):
            call = self._calls[choice, index] = _Call(self._free(choice, index))
        call.engine_id = call.engine_id or engine_id
        call.name = call.name or name
        if arguments:
            call.pieces.append(arguments)
        return entry if call.position == index else {**entry, "index": call.position}

    def _free(self, choice: int, wished: int) -> int:
        position = wished
        if (choice, wished) in self._taken:
            position = 1 + max(taken for of, taken in self._taken if of == choice)
        self._taken.add((choice, position))
        return position


def _begins_another(call: _Call, engine_id: str, name: str) -> bool:
    different = bool(name and engine_id and call.engine_id) and engine_id != call.engine_id
    return different and is_json_object("".join(call.pieces))


def parts(entry: JsonObject) -> tuple[str, str, str]:
    """The id, the name and the piece of arguments of an entry; empty what it does not say."""
    function = entry.get("function")
    members = function if is_object(function) else {}
    return _text(entry.get("id")), _text(members.get("name")), _text(members.get("arguments"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
