"""Chat chunks as vLLM 0.32 writes them, for the tests of the profile."""

from typing import Any

HEAD: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1764450000,
    "model": "m",
}


def chunk(delta: dict[str, Any], index: int = 0, **choice: Any) -> dict[str, Any]:
    """A chunk with one choice."""
    members = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **choice}
    return {**HEAD, "choices": [members]}


def role(index: int = 0) -> dict[str, Any]:
    """The first chunk of a choice."""
    return chunk({"role": "assistant", "content": ""}, index)


def text(piece: str, index: int = 0) -> dict[str, Any]:
    """A chunk of text and nothing else."""
    return chunk({"content": piece}, index, token_ids=None)


def tool(
    position: int,
    arguments: str | None = None,
    *,
    index: int = 0,
    call_id: str | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """A chunk with one piece of a tool call; what is None is left out."""
    function = {"name": name, "arguments": arguments}
    entry = {
        "index": position,
        "id": call_id,
        "function": {key: value for key, value in function.items() if value is not None},
    }
    return chunk(
        {"tool_calls": [{key: value for key, value in entry.items() if value is not None}]}, index
    )


def finish(reason: str = "stop", index: int = 0) -> dict[str, Any]:
    """The last chunk of a choice."""
    return chunk({"content": ""}, index, finish_reason=reason, stop_reason=None)


def usage(prompt: int = 3, completion: int = 2) -> dict[str, Any]:
    """The summary chunk."""
    counts = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    return {**HEAD, "choices": [], "usage": counts}
