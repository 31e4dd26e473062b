"""Puts the chat.completion together that a stream of chat.completion.chunk objects amounts to.

Merging is generic, so that what a later engine adds survives. What null means is "not said": it
never overwrites. Beyond that:

- of the chunk itself, the identity (id, created, model) is the first that came, anything else the
  last: counts and metrics are totals, and prompt facts are repeated for each choice;
- of a choice, lists grow (token ids, the lists within log probabilities), the rest is replaced;
- of a delta, text and lists grow, and so do the tool calls, each by its own index.
"""

from typing import Any, Final

from msgspec import Struct, field

from nnrp_sched.profile.json_values import JsonObject, is_array, is_object, is_position

_IDENTITY: Final = frozenset({"id", "object", "created", "model"})
_NAMES: Final = frozenset({"role", "id", "type", "name", "format", "object"})
"""Text members of a delta that name something: repeated, not continued."""


def fallback_call_id(choice: int, tool: int) -> str:
    """The id of a tool call that the engine gave none (adapter facts 5.4)."""
    return f"call-{choice}-{tool}"


class _ToolCall(Struct):
    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    function: JsonObject = field(default_factory=dict[str, Any])
    fields: JsonObject = field(default_factory=dict[str, Any])

    def add(self, entry: JsonObject) -> None:
        for key, value in entry.items():
            if value is None or key == "index":
                continue
            if key == "function":
                self._add_function(value)
            elif key == "id":
                if isinstance(value, str) and not self.call_id:
                    self.call_id = value
            else:
                _merge_member(self.fields, key, value, grow_text=False)

    def _add_function(self, function: object) -> None:
        if not is_object(function):
            return
        for key, value in function.items():
            if key == "arguments":
                if value and isinstance(value, str):
                    self.arguments.append(value)
            elif key == "name":
                if isinstance(value, str) and not self.name:
                    self.name = value
            elif value is not None:
                _merge_member(self.function, key, value, grow_text=False)

    def document(self, choice: int, tool: int) -> JsonObject:
        return {
            "id": self.call_id or fallback_call_id(choice, tool),
            "type": "function",
            "function": {
                "name": self.name,
                "arguments": "".join(self.arguments),
                **self.function,
            },
            **self.fields,
        }


class _Choice(Struct):
    content: list[str] = field(default_factory=list[str])
    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Every other text of the delta: reasoning, refusal."""
    message: JsonObject = field(default_factory=dict[str, Any])
    tool_calls: dict[int, _ToolCall] = field(default_factory=dict[int, _ToolCall])
    fields: JsonObject = field(default_factory=dict[str, Any])

    def add_delta(self, delta: JsonObject) -> None:
        for key, value in delta.items():
            if value is None:
                continue
            if key == "tool_calls":
                self._add_tool_calls(value)
            elif isinstance(value, str) and key not in _NAMES:
                pieces = self.content if key == "content" else self.texts.setdefault(key, [])
                pieces.append(value)
            elif key != "content":
                _merge_member(self.message, key, value, grow_text=True)

    def _add_tool_calls(self, entries: object) -> None:
        for entry in entries if is_array(entries) else ():
            index = entry.get("index") if is_object(entry) else None
            if is_position(index):
                if index not in self.tool_calls:
                    self.tool_calls[index] = _ToolCall()
                self.tool_calls[index].add(entry)

    def document(self, index: int) -> JsonObject:
        texts = {key: text for key, pieces in self.texts.items() if (text := "".join(pieces))}
        calls = [
            call.document(index, tool)
            for tool, call in sorted(self.tool_calls.items())
            if call.call_id or call.name or call.arguments
        ]
        # vLLM's own non-streaming body says null for a message that has no text but has a call.
        empty = None if calls or texts else ""
        message: JsonObject = {
            "role": "assistant",
            "content": "".join(self.content) or empty,
            **self.message,
            **texts,
        }
        if calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "logprobs": None,
            "finish_reason": None,
            **self.fields,
            "message": message,
        }


class ChatAssembly:
    """Collects the chunks of one stream. What is malformed in them is passed over."""

    def __init__(self) -> None:
        self._fields: JsonObject = {}
        self._choices: dict[int, _Choice] = {}

    def add(self, chunk: JsonObject) -> None:
        """Take the next chunk; it is not changed."""
        for key, value in chunk.items():
            if value is None or key == "choices":
                continue
            if key in _IDENTITY:
                self._fields.setdefault(key, value)
            else:
                self._fields[key] = value
        choices = chunk.get("choices")
        for choice in choices if is_array(choices) else ():
            if is_object(choice):
                self._add_choice(choice)

    def _add_choice(self, choice: JsonObject) -> None:
        index, delta = choice.get("index"), choice.get("delta")
        if not is_position(index):
            return
        state = self._choice(index)
        for key, value in choice.items():
            if value is not None and key != "index" and key != "delta":
                _merge_member(state.fields, key, value, grow_text=False)
        if is_object(delta):
            state.add_delta(delta)

    def add_text(self, index: int, text: str) -> None:
        """Take a piece of text whose chunk has nothing else to tell, without the chunk."""
        self._choice(index).content.append(text)

    def _choice(self, index: int) -> _Choice:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Choice()
        return choice

    @property
    def identified(self) -> bool:
        """Whether every member of the stream's identity is known."""
        return self._fields.keys() >= _IDENTITY

    def body(self) -> JsonObject:
        """The chat.completion of what was added so far."""
        return {
            **self._fields,
            "object": "chat.completion",
            "choices": [choice.document(index) for index, choice in sorted(self._choices.items())],
        }


def _merge_member(target: JsonObject, key: str, value: object, *, grow_text: bool) -> None:
    # Containers in the target are always our own, so growing them leaves the chunks as they are.
    known: object = target.get(key)
    if is_array(value) and is_array(known):
        known.extend(value)
    elif is_array(value):
        target[key] = list(value)
    elif is_object(value):
        members = known if is_object(known) else {}
        for name, member in value.items():
            if member is not None:
                _merge_member(members, name, member, grow_text=grow_text)
        target[key] = members
    elif grow_text and isinstance(known, str) and isinstance(value, str) and key not in _NAMES:
        target[key] = known + value
    else:
        target[key] = value
