"""What the scripted engine says to a chat: a pure function of the request body.

A `scripted` object in the body sets it exactly; without one the answer repeats the last user
message, calls the first tool when that message mentions a tool, and goes on at leisure when it
asks for a long answer (the suite's cancellation recipe needs one that is still running).
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import chain, islice, repeat
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from nnrp_sched.engine.port import ChatBody
from nnrp_sched.errors import BackendError
from nnrp_sched.profile.json_values import is_array, is_object

MAX_CHOICES: Final = 128
MAX_REPEAT: Final = 1_000_000
ARGUMENTS_PIECE: Final = 8
"""Characters of tool arguments in one chunk; never all of them in a single one."""
LONG_ANSWER_WORDS: Final = 400
LONG_ANSWER_DELAY_MS: Final = 10.0

_WORDS: Final = re.compile(r"\s*\S+|\s+$")
_EXAMPLES: Final[Mapping[str, Any]] = MappingProxyType(
    {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
)
"""JSON Schema type → the value a made-up tool call passes for it."""


class ScriptedToolCall(Struct, frozen=True, forbid_unknown_fields=True):
    """One tool call to make."""

    name: str
    arguments: str = "{}"
    """JSON text, complete or not."""
    id: str | None = None


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """The `scripted` object of a request body."""

    text: str | list[str] | None = None
    """The answer; a list is one piece a chunk, a string is cut at words."""
    reasoning: str = ""
    tool_calls: list[ScriptedToolCall] = []
    deltas: list[dict[str, Any]] = []
    """Deltas that come last, as they are: whatever a broken parser may produce."""
    repeat: Annotated[int, Meta(ge=1, le=MAX_REPEAT)] = 1
    """How often the text comes."""
    delay_ms: Annotated[float, Meta(ge=0)] = 0
    """Milliseconds before each chunk of content."""
    fail_after: Annotated[int, Meta(ge=0)] | None = None
    """Fail after this many chunks of content, if there are as many."""
    fail_status: Annotated[int, Meta(ge=400, le=599)] | None = None
    """The status of that failure (500 without it); alone, the call is refused with it."""
    hold: bool = False
    """After all content, wait for an abort."""


class Plan(Struct, frozen=True):
    """One call, worked out: what to stream and how."""

    script: Script
    choices: int
    limit: int | None
    """The most pieces a choice may have (max_completion_tokens, max_tokens)."""
    prompt_tokens: int
    """Words in the messages; this engine's token is a word."""

    def deltas(self, choice: int) -> Iterator[ChatBody]:
        """The content of one choice, one delta a chunk."""
        return islice(self._all_deltas(choice), self.limit)

    def finish_reason(self, choice: int) -> str:
        """How a choice ends by itself."""
        if self.limit is not None and self._has_more_than(self.limit, choice):
            return "length"
        return "tool_calls" if self.script.tool_calls else "stop"

    def _has_more_than(self, limit: int, choice: int) -> bool:
        return next(islice(self._all_deltas(choice), limit, None), None) is not None

    def _all_deltas(self, choice: int) -> Iterator[ChatBody]:
        script = self.script
        for piece in _WORDS.findall(script.reasoning):
            yield {"reasoning": piece}
        pieces = _pieces(script.text)
        for piece in chain.from_iterable(repeat(pieces, script.repeat)):
            yield {"content": piece}
        for index, call in enumerate(script.tool_calls):
            yield from _tool_call_deltas(call, choice, index)
        yield from script.deltas


def plan(body: ChatBody) -> Plan:
    """Work out a call. Raises `BackendError` 400 for a body that makes no sense."""
    words = [word for message in _messages(body) for word in _text(message).split()]
    return Plan(
        script=_script(body),
        choices=_count(body, "n", MAX_CHOICES) or 1,
        limit=_count(body, "max_completion_tokens", sys.maxsize)
        or _count(body, "max_tokens", sys.maxsize),
        prompt_tokens=len(words),
    )


def _script(body: ChatBody) -> Script:
    scripted = body.get("scripted")
    if scripted is not None:
        try:
            return msgspec.convert(scripted, Script)
        except msgspec.ValidationError as fault:
            raise _bad_request(f"scripted: {fault}", "scripted") from fault
    said = next(
        (_text(message) for message in reversed(_messages(body)) if message.get("role") == "user"),
        "",
    )
    call = _wanted_tool_call(body, said)
    if call is not None:
        return Script(tool_calls=[call])
    if "long answer" in said.lower():
        words = [f"word{number} " for number in range(LONG_ANSWER_WORDS)]
        return Script(text=words, delay_ms=LONG_ANSWER_DELAY_MS)
    answer = f"You said: {said}"
    return Script(text=[answer] if body.get("model") == "reference-model" else answer)


def _wanted_tool_call(body: ChatBody, said: str) -> ScriptedToolCall | None:
    choice, tools = body.get("tool_choice", "auto"), body.get("tools")
    if not tools or choice == "none" or ("tool" not in said.lower() and choice == "auto"):
        return None
    try:
        functions = msgspec.convert(tools, list[_Tool])
    except msgspec.ValidationError as fault:
        raise _bad_request(f"tools: {fault}", "tools") from fault
    function = functions[0].function
    properties = function.parameters.properties
    arguments = {name: _example(properties.get(name, {})) for name in function.parameters.required}
    return ScriptedToolCall(function.name, json.dumps(arguments))


def _example(schema: ChatBody) -> object:
    """A value that fits the schema of a parameter, as far as the type says."""
    values = schema.get("enum")
    return values[0] if is_array(values) and values else _EXAMPLES.get(schema.get("type", "string"))


class _Parameters(Struct, frozen=True):
    properties: dict[str, dict[str, Any]] = {}
    required: list[str] = []


class _Function(Struct):
    name: str
    parameters: _Parameters = _Parameters()


class _Tool(Struct):
    function: _Function


def _tool_call_deltas(call: ScriptedToolCall, choice: int, index: int) -> Iterator[ChatBody]:
    call_id = call.id or f"chatcmpl-tool-{choice}-{index}"
    function = {"name": call.name, "arguments": ""}
    yield {
        "tool_calls": [{"id": call_id, "type": "function", "index": index, "function": function}]
    }
    size = max(1, min(ARGUMENTS_PIECE, len(call.arguments) // 2))
    for start in range(0, len(call.arguments), size):
        piece = call.arguments[start : start + size]
        yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str | list[str] | None) -> list[str]:
    if isinstance(text, list):
        return text
    return _WORDS.findall(text or "")


def _messages(body: ChatBody) -> list[ChatBody]:
    messages = body.get("messages")
    if not is_array(messages) or not all(is_object(entry) for entry in messages):
        raise _bad_request("messages must be a list of objects", "messages")
    return messages


def _text(message: ChatBody) -> str:
    content = message.get("content")
    if is_array(content):
        return " ".join(str(part.get("text", "")) for part in content if is_object(part))
    return content if isinstance(content, str) else ""


def _count(body: ChatBody, name: str, most: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= most:
        raise _bad_request(f"{name} must be an integer from 1 to {most}", name)
    return value


def _bad_request(message: str, parameter: str) -> BackendError:
    return BackendError(message, status=400, error_type="BadRequestError", parameter=parameter)
