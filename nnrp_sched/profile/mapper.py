"""Turns the chat chunks of one streaming call into profile events (adapter facts 5.4).

Of each chunk: its usage, then for each choice its text, its tool calls and, with the finish
reason, the ends of its tool calls. What the plain events cannot say (reasoning, refusals, log
probabilities, token ids, members this version does not know) is never dropped: the chunk then
rides as `openai_chunk` on the first event it yields, made for it if it yields none.
"""

from typing import Final

from msgspec.structs import replace

from nnrp_sched.errors import ProfileStreamError
from nnrp_sched.profile.assembly import ChatAssembly
from nnrp_sched.profile.events import Completed, Event, OutputTextDelta, Usage
from nnrp_sched.profile.json_values import JsonObject, is_array, is_object, is_position
from nnrp_sched.profile.tool_call_mapper import ToolCallMapper
from nnrp_sched.profile.tool_positions import ToolPositions

_TEXT_CHUNK: Final = frozenset({"id", "object", "created", "model", "choices"})
"""The members of a chunk that is only text."""

# What needs no openai_chunk: the events say it, or only the final body has a use for it.
_PLAIN_CHUNK: Final = _TEXT_CHUNK | {"system_fingerprint", "service_tier"}
_PLAIN_SUMMARY: Final = _PLAIN_CHUNK | {"usage"}
_PLAIN_CHOICE: Final = frozenset({"index", "delta", "finish_reason", "stop_reason"})
_PLAIN_DELTA: Final = frozenset({"role", "content", "tool_calls"})
_PLAIN_TOOL_CALL: Final = frozenset({"index", "id", "type", "function"})
_PLAIN_FUNCTION: Final = frozenset({"name", "arguments"})


class ChatMapper:
    """Maps one stream; feed it every chunk, then either `finish` or `interrupt`."""

    def __init__(self) -> None:
        self._assembly = ChatAssembly()
        self._positions = ToolPositions()
        self._tool_calls = ToolCallMapper()
        self._identified = False
        self._unsent: list[Event] = []

    def chunk(self, chunk: JsonObject) -> list[Event]:
        """The events of the next chunk, in order; often one, sometimes none.

        Malformed members are passed over. Raises `ProfileStreamError` when the engine breaks the
        order of a tool call; `interrupt` then also returns what this chunk yielded before.
        """
        text = self._text_only(chunk) if self._identified else None
        if text is not None:
            self._assembly.add_text(text.index, text.delta)
            return [text]
        chunk = self._positions.placed(chunk)
        self._assembly.add(chunk)
        self._identified = self._identified or self._assembly.identified
        events: list[Event] = []
        try:
            self._map(chunk, events)
        except ProfileStreamError:
            self._unsent = events
            raise
        return events

    def finish(self) -> list[Event]:
        """The events that end the stream; the last one is always `Completed`."""
        events: list[Event] = []
        self._tool_calls.end_all(events)
        events.append(Completed(self._assembly.body()))
        return events

    def interrupt(
        self, code: str = "tool_call_stream_interrupted", message: str = "The stream ended early."
    ) -> list[Event]:
        """A `response.tool_call.error` for every open call, when the stream ends otherwise.

        `code` is one of `PROFILE_ERRORS`.
        """
        events, self._unsent = self._unsent, []
        return [*events, *self._tool_calls.interrupt(code, message)]

    @staticmethod
    def _text_only(chunk: JsonObject) -> OutputTextDelta | None:
        """The event of a chunk that is nothing but one piece of text; the path of most tokens."""
        if chunk.keys() != _TEXT_CHUNK:
            return None
        try:
            (choice,) = chunk["choices"]
            index, delta = choice["index"], choice["delta"]
            text = delta["content"]
            if len(delta) != 1 or not text or type(text) is not str or not is_position(index):
                return None
            for key, value in choice.items():
                if value is not None and key != "index" and key != "delta":
                    return None
        except (LookupError, TypeError, ValueError, AttributeError):
            # Any other shape takes the general path.
            return None
        return OutputTextDelta(index, text)

    def _map(self, chunk: JsonObject, events: list[Event]) -> None:
        members = chunk.get("choices")
        choices = [
            choice
            for choice in (members if is_array(members) else ())
            if is_object(choice) and is_position(choice.get("index"))
        ]
        usage = chunk.get("usage")
        if members == [] and is_object(usage):
            events.append(Usage(both_spellings(usage)))
        for choice in choices:
            self._map_choice(choice, events)
        if not _says_more(chunk, choices):
            return
        if events:
            events[0] = replace(events[0], openai_chunk=chunk)
        elif is_array(members):
            index = choices[0]["index"] if choices else 0
            events.append(OutputTextDelta(index, "", chunk))

    def _map_choice(self, choice: JsonObject, events: list[Event]) -> None:
        index, delta = choice["index"], choice.get("delta")
        if is_object(delta):
            text, tool_calls = delta.get("content"), delta.get("tool_calls")
            if text and isinstance(text, str):
                events.append(OutputTextDelta(index, text))
            for entry in tool_calls if is_array(tool_calls) else ():
                self._tool_calls.delta(index, entry, events)
        if choice.get("finish_reason") is not None:
            self._tool_calls.end_choice(index, events)


def both_spellings(usage: JsonObject) -> JsonObject:
    """Token counts as chat (prompt/completion) and as responses (input/output) name them.

    The profile's example has the latter, vLLM sends the former; everything else stays as it came.
    """
    counts = dict(usage)
    for chat, responses in (
        ("prompt_tokens", "input_tokens"),
        ("completion_tokens", "output_tokens"),
    ):
        known = usage.get(chat) if usage.get(chat) is not None else usage.get(responses)
        if known is not None:
            counts[chat] = counts[responses] = known
    return counts


def _says_more(chunk: JsonObject, choices: list[JsonObject]) -> bool:
    """Whether a chunk holds what neither the plain events nor the final body alone can say."""
    if _has_more(chunk, _PLAIN_CHUNK if choices else _PLAIN_SUMMARY):
        return True
    for choice in choices:
        if _has_more(choice, _PLAIN_CHOICE):
            return True
        delta = choice.get("delta")
        if not is_object(delta):
            continue
        if _has_more(delta, _PLAIN_DELTA):
            return True
        tool_calls = delta.get("tool_calls")
        for entry in tool_calls if is_array(tool_calls) else ():
            if is_object(entry) and _has_more(entry, _PLAIN_TOOL_CALL):
                return True
            function = entry.get("function") if is_object(entry) else None
            if is_object(function) and _has_more(function, _PLAIN_FUNCTION):
                return True
    return False


def _has_more(members: JsonObject, plain: frozenset[str]) -> bool:
    for key, value in members.items():
        # Null and the empty text say nothing.
        if value is not None and key not in plain and value != "":
            return True
    return False
