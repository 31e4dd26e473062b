"""What a model is told of its tool calls: messages that keep a transcript valid. Pure.

Each call of an assistant message needs one tool message, whatever became of the call.
"""

from collections.abc import Iterable
from typing import Any, Final

from nnrp_sched.profile.json_values import is_json_object
from nnrp_sched.profile.tools import ToolAnswer
from nnrp_sched_orchestrator.records import ToolCall

Message = dict[str, Any]
"""One message of a chat body."""

_NOTHING: Final = "(no output)"
"""Stands for empty content, which some chat templates refuse."""


def tool_message(call: ToolCall, content: str) -> Message:
    """The message that answers a call."""
    return {"role": "tool", "tool_call_id": call.call_id, "content": content or _NOTHING}


def answer_content(output: str, answer: ToolAnswer) -> str:
    """What a call that ended by itself has to say: its output, and what the model must know."""
    notes: list[str] = []
    if answer.dropped_bytes:
        notes.append(
            f"[truncated: {answer.dropped_bytes} of {answer.output_bytes} bytes were left out]"
        )
    if answer.stderr.strip():
        notes.append(f"[stderr]\n{answer.stderr.strip()}")
    if answer.status == "failed":
        notes.append(f"[failed: {answer.message}]")
    return _joined(output, notes)


def cut_content(output: str, why: str) -> str:
    """What a call says that was stopped: its output so far, and that it was stopped."""
    return _joined(output, [f"[cancelled: {why or 'it is not wanted any more'}]"])


def assistant_message(text: str, calls: Iterable[ToolCall]) -> Message:
    """An answer of the model, as it goes into the next request.

    Arguments that are no JSON object become an empty one: servers refuse a transcript with them.
    """
    message: Message = {"role": "assistant", "content": text or None}
    entries = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": call.arguments if is_json_object(call.arguments) else "{}",
            },
        }
        for call in calls
    ]
    if entries:
        message["tool_calls"] = entries
    elif message["content"] is None:
        message["content"] = ""
    return message


def _joined(output: str, notes: list[str]) -> str:
    separator = "" if not output or output.endswith("\n") else "\n"
    return output + separator + "\n".join(notes) if notes else output
