"""Writes the chunks of an OpenAI stream out of the profile's events. Pure.

The events of one engine chunk say its text and its tool calls, each once; whatever else it had
rides as `openai_chunk` on the first of them (`profile.mapper`). So a chunk written here is that
rest, without what the events say, and the event's own part. The final chunk of each choice and the
usage come at the end, from the finished body: the events in between do not tell them.
"""

import re
from typing import Any, Final

from nnrp_sched.profile import (
    Completed,
    Event,
    OutputTextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallError,
    ToolCallStarted,
    Usage,
)
from nnrp_sched.profile.json_values import JsonObject, is_array, is_object, is_position

_ITEM: Final = re.compile(r"tool-call-(\d+)-\d+")
"""Our servers' item ids, which tell the choice; an event of a tool call does not."""
_RESPONSES_SPELLING: Final = frozenset({"input_tokens", "output_tokens"})
_TOLD_AT_THE_END: Final = ("system_fingerprint", "service_tier")
_SAID_OF_CHOICE: Final = frozenset({"delta", "finish_reason", "stop_reason"})
_SAID_OF_CALL: Final = frozenset({"id", "type", "function"})
_SAID_OF_FUNCTION: Final = frozenset({"name", "arguments"})


class ChunkWriter:
    """The chunks of one stream; feed it every event, then the body."""

    def __init__(self, stream_id: str, model: str, created: int, *, include_usage: bool) -> None:
        """`stream_id` and `model` are told until the engine tells its own, `created` is in seconds
        since 1970; with `include_usage` the token counts come last."""
        self._identity: JsonObject = {
            "id": f"chatcmpl-{stream_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._include_usage = include_usage
        self._begun = False
        self._choices: set[int] = set()
        """Those whose role was told."""
        self._usage: JsonObject | None = None
        self._usage_chunk: JsonObject = {}

    def event(self, event: Event) -> JsonObject | None:
        """The chunk of an event; None when it has none."""
        match event:
            case OutputTextDelta(index=index, delta=text, openai_chunk=extra):
                return self._chunk(index, {"content": text} if text else {}, extra)
            case ToolCallStarted(item_id=item_id, openai_chunk=extra):
                call = {
                    "index": event.index,
                    "id": event.call_id,
                    "type": "function",
                    "function": {"name": event.name, "arguments": ""},
                }
                return self._chunk(_choice_of(item_id), {"tool_calls": [call]}, extra)
            case ToolCallDelta(item_id=item_id, arguments_delta=arguments, openai_chunk=extra):
                call = {"index": event.index, "function": {"arguments": arguments}}
                return self._chunk(_choice_of(item_id), {"tool_calls": [call]}, extra)
            case Usage(usage=usage, openai_chunk=extra):
                self._usage, self._usage_chunk = usage, extra or {}
                return None
            case ToolCallCompleted() | ToolCallError() | Completed() if event.openai_chunk:
                return self._chunk(0, {}, event.openai_chunk)
            case _:
                return None

    def finish(self, body: JsonObject | None) -> list[JsonObject]:
        """The chunks that end the stream, from the chat.completion."""
        whole = body or {}
        if not self._begun:
            self._adopt(whole)
        self._identity |= {k: whole[k] for k in _TOLD_AT_THE_END if whole.get(k) is not None}
        chunks = [
            self._finish_choice(choice)
            for choice in _objects(whole.get("choices"))
            if is_position(choice.get("index"))
        ]
        usage = self._usage if self._usage is not None else whole.get("usage")
        if self._include_usage and is_object(usage):
            counts = usage
            if "prompt_tokens" in usage:
                counts = {k: v for k, v in usage.items() if k not in _RESPONSES_SPELLING}
            summary: JsonObject = {
                **self._usage_chunk,
                **self._identity,
                "choices": [],
                "usage": counts,
            }
            chunks.append(summary)
        return chunks

    def _finish_choice(self, choice: JsonObject) -> JsonObject:
        index = choice["index"]
        last: JsonObject = {
            "delta": {},
            "logprobs": None,
            "finish_reason": choice.get("finish_reason"),
        }
        if choice.get("stop_reason") is not None:
            last["stop_reason"] = choice["stop_reason"]
        if index not in self._choices:
            # Nothing of it was streamed: a server may answer at once, and an answer be empty.
            message = choice.get("message")
            last["delta"] = _whole_delta(message if is_object(message) else {})
            last["logprobs"] = choice.get("logprobs")
        return {**self._identity, "choices": [{"index": index, **last}]}

    def _chunk(self, index: int, plain: JsonObject, extra: JsonObject | None) -> JsonObject:
        if extra is not None and not self._begun:
            self._adopt(extra)
        self._begun = True
        choices = _rest_of_choices(extra) if extra is not None else {}
        if plain or extra is None:
            _add(choices.setdefault(index, {"delta": {}}), plain)
        for known, choice in choices.items():
            if known not in self._choices:
                self._choices.add(known)
                choice["delta"].setdefault("role", "assistant")
        return {
            **(extra or {}),
            **self._identity,
            "choices": [
                {"index": known, "logprobs": None, "finish_reason": None, **choice}
                for known, choice in choices.items()
            ],
        }

    def _adopt(self, document: JsonObject) -> None:
        """Tell the engine's identity from now on: one stream has one."""
        for name in ("id", "created", "model"):
            if document.get(name) is not None:
                self._identity[name] = document[name]


def _choice_of(item_id: str) -> int:
    known = _ITEM.fullmatch(item_id)
    return int(known.group(1)) if known is not None else 0


def _rest_of_choices(chunk: JsonObject) -> dict[int, JsonObject]:
    """By index, the choices of a chunk without what its events and the final body say."""
    rest: dict[int, JsonObject] = {}
    for choice in _objects(chunk.get("choices")):
        index = choice.get("index")
        if not is_position(index):
            continue
        delta = choice.get("delta")
        members = {k: v for k, v in choice.items() if k not in _SAID_OF_CHOICE and k != "index"}
        rest[index] = {**members, "delta": _rest_of_delta(delta if is_object(delta) else {})}
    return rest


def _rest_of_delta(delta: JsonObject) -> JsonObject:
    rest = {k: v for k, v in delta.items() if k not in ("content", "tool_calls")}
    calls = [call for entry in _objects(delta.get("tool_calls")) if (call := _rest_of_call(entry))]
    if calls:
        rest["tool_calls"] = calls
    return rest


def _rest_of_call(entry: JsonObject) -> JsonObject | None:
    rest = {k: v for k, v in entry.items() if k not in _SAID_OF_CALL}
    function = entry.get("function")
    members = function if is_object(function) else {}
    more = {k: v for k, v in members.items() if k not in _SAID_OF_FUNCTION and v is not None}
    if more:
        rest["function"] = more
    return rest if rest.keys() - {"index"} else None


def _add(choice: JsonObject, plain: JsonObject) -> None:
    """Add an event's own part to a choice."""
    delta: JsonObject = choice["delta"]
    if "content" in plain:
        delta["content"] = plain["content"]
    for call in plain.get("tool_calls", ()):
        calls: list[Any] = delta.setdefault("tool_calls", [])
        known = next((each for each in calls if each.get("index") == call["index"]), None)
        if known is None:
            calls.append(call)
        else:
            function = {**known.get("function", {}), **call["function"]}
            known.update(call, function=function)


def _whole_delta(message: JsonObject) -> JsonObject:
    delta = {"role": "assistant", **{k: v for k, v in message.items() if v is not None}}
    calls = _objects(message.get("tool_calls"))
    if calls:
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
    return delta


def _objects(value: object) -> list[JsonObject]:
    return [each for each in value if is_object(each)] if is_array(value) else []
