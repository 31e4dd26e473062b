"""What has come of a model call, event by event. Pure."""

from typing import Any, Final

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile import (
    Completed,
    Event,
    OutputTextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    Usage,
)
from nnrp_sched.profile.json_values import is_array, is_object
from nnrp_sched_orchestrator.grants import MARGIN
from nnrp_sched_orchestrator.records import (
    ModelResult,
    Receipt,
    StreamStatus,
    StreamTimings,
    ToolCall,
)

_CHARACTERS_PER_TOKEN: Final = 2
"""Fewer than tokens have, so that a count by them comes out high rather than low."""


class Answer:
    """The text, tool calls and counts so far."""

    def __init__(self) -> None:
        self.usage: dict[str, Any] | None = None
        self.body: dict[str, Any] | None = None
        """The chat.completion, once there is one."""
        self._text: list[str] = []
        self._tool_calls: list[ToolCall] = []
        self._pieces = 0
        self._characters = 0

    def take(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case OutputTextDelta(index=index, delta=delta):
                self._count(delta)
                if index == 0:
                    self._text.append(delta)
            case ToolCallDelta(arguments_delta=delta):
                self._count(delta)
            case ToolCallCompleted(index=index, call_id=call_id, name=name, arguments=arguments):
                self._tool_calls.append(ToolCall(index, call_id, name, arguments))
            case Usage(usage=usage):
                self.usage = usage
            case Completed(body=body):
                self.body = body
                counts = body.get("usage")
                if self.usage is None and is_object(counts):
                    self.usage = counts
            case _:
                pass

    def _count(self, delta: str) -> None:
        self._pieces += 1
        self._characters += len(delta)

    @property
    def text(self) -> str:
        """The text of the first choice; of an answer that came whole, what its body says."""
        return "".join(self._text) or _message_text(self.body)

    @property
    def estimate(self) -> int:
        """Output tokens so far, rather too many than too few."""
        return max(self._pieces, self._characters // _CHARACTERS_PER_TOKEN)

    @property
    def tokens(self) -> int | None:
        """Output tokens as the server counted them, once it has."""
        usage = self.usage or {}
        for name in ("completion_tokens", "output_tokens"):
            count = usage.get(name)
            if type(count) is int and count >= 0:
                return count
        return None

    @property
    def spent(self) -> int:
        """Output tokens as the server counted them, unless it has sent more; else what came."""
        told = self.tokens
        return self.pieces if told is None or told + MARGIN < self.pieces else told

    @property
    def pieces(self) -> int:
        """Pieces of output so far: no more than there are tokens."""
        return self._pieces

    @property
    def finish_reason(self) -> str | None:
        """Why it ended: `length` when any choice was cut at one."""
        reasons = [choice.get("finish_reason") for choice in _choices(self.body)]
        return "length" if "length" in reasons else next(iter(reasons), None)

    def result(
        self,
        status: StreamStatus,
        error: NnrpSchedError | None,
        receipt: Receipt | None,
        timings: StreamTimings,
    ) -> ModelResult:
        """The result, if it ended now."""
        return ModelResult(
            status,
            text=self.text,
            tool_calls=tuple(self._tool_calls),
            body=self.body,
            usage=self.usage,
            error=error,
            receipt=receipt,
            timings=timings,
        )


def _choices(body: dict[str, Any] | None) -> list[dict[str, Any]]:
    choices = (body or {}).get("choices")
    return [choice for choice in choices if is_object(choice)] if is_array(choices) else []


def _message_text(body: dict[str, Any] | None) -> str:
    for choice in _choices(body)[:1]:
        message = choice.get("message")
        content = message.get("content") if is_object(message) else None
        return content if isinstance(content, str) else ""
    return ""
