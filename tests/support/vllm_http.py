"""A plain HTTP client for vLLM's own server, apart from everything under test."""

import http.client
import json
from collections import defaultdict
from typing import Any

import anyio.to_thread


async def post_chat(
    address: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Status and answer of one chat: an object, or the list of chunks of a stream."""
    return await anyio.to_thread.run_sync(_post, address, body, headers or {})


async def get(address: str, path: str) -> tuple[int, str]:
    """Status and text of a GET."""
    return await anyio.to_thread.run_sync(_get, address, path)


def _get(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=120)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def _post(address: str, body: dict[str, Any], more: dict[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=120)
    try:
        headers = {"Content-Type": "application/json", **more}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        if "event-stream" not in (answer.getheader("Content-Type") or ""):
            return answer.status, json.loads(text)
        data = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert data[-1] == "[DONE]"
        return answer.status, [json.loads(line) for line in data[:-1]]
    finally:
        connection.close()


def summary(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a stream said, however it was cut into chunks."""
    text: dict[Any, str] = defaultdict(str)
    names: dict[Any, str] = {}
    finished: dict[int, str] = {}
    usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            index, delta = choice["index"], choice["delta"]
            text[index] += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                key = (index, call["index"])
                function = call["function"]
                text[key] += function.get("arguments") or ""
                names[key] = names.get(key) or function.get("name")
            if choice["finish_reason"]:
                finished[index] = choice["finish_reason"]
    return {"text": dict(text), "names": names, "finished": finished, "usage": usage}
