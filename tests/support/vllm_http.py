"""A plain HTTP client for vLLM's own server, apart from everything under test."""

import http.client
import json
from typing import Any

import anyio.to_thread


async def post_chat(address: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and answer of one chat: an object, or the list of chunks of a stream."""
    return await anyio.to_thread.run_sync(_post, address, body)


def _post(address: str, body: dict[str, Any]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=120)
    try:
        headers = {"Content-Type": "application/json"}
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
