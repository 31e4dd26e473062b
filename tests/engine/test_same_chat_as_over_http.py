"""The same chat in-process and over vLLM's own HTTP server gives the same."""

from typing import Any

import anyio
import pytest

from nnrp_sched.engine.port import ChatCall
from nnrp_sched.errors import BackendError
from nnrp_sched_patches.launch import Serving
from tests.support.vllm_http import post_chat, summary

pytestmark = pytest.mark.anyio

MODEL = "SmolLM2-135M-Instruct"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            # Without this vLLM leaves the arguments unconstrained.
            "strict": True,
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 12}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def body(text: str = "What is the capital of France?", **members: Any) -> dict[str, Any]:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    return {**chat, "temperature": 0, "max_tokens": 40, **members}


BODIES = {
    "text": body(),
    "length": body("Count from one to twenty.", max_tokens=7),
    "stop": body(stop=["Paris"]),
    "several choices": body(n=2, temperature=0.7, seed=5),
    "logprobs": body(logprobs=True, top_logprobs=2, max_tokens=4),
    "token ids": body(return_token_ids=True, max_tokens=4),
    "schema": body(
        "Name a city.",
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "city",
                "schema": {
                    "type": "object",
                    "properties": {"city": {"type": "string", "maxLength": 10}},
                    "required": ["city"],
                },
            },
        },
    ),
    "required tool": body("Weather in Paris?", tools=TOOLS, tool_choice="required", max_tokens=100),
    "named tool": body(
        "Weather in Paris?",
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=100,
    ),
}


def _without_identity(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what no two calls share: ids and the time."""
    kept = {key: value for key, value in answer.items() if key not in ("id", "created")}
    for choice in kept["choices"]:
        for call in choice["message"].get("tool_calls") or ():
            del call["id"]
    return kept


def _address(serving: Serving) -> str:
    assert serving.http is not None
    return serving.http


@pytest.mark.parametrize("stream", [None, False], ids=["no stream key", "stream false"])
@pytest.mark.parametrize("name", BODIES)
async def test_a_whole_answer_is_the_same_object(
    serving: Serving, name: str, stream: bool | None
) -> None:
    chat = BODIES[name] if stream is None else {**BODIES[name], "stream": stream}
    with anyio.fail_after(120):
        status, over_http = await post_chat(_address(serving), chat)
        in_process = await serving.engine.complete(ChatCall("same", chat))
    assert status == 200
    assert _without_identity(in_process) == _without_identity(over_http)


@pytest.mark.parametrize("name", BODIES)
async def test_a_stream_says_the_same(serving: Serving, name: str) -> None:
    chat = {**BODIES[name], "stream": True, "stream_options": {"include_usage": True}}
    with anyio.fail_after(120):
        status, over_http = await post_chat(_address(serving), chat)
        stream = serving.engine.stream(ChatCall("same", chat))
        in_process = [chunk async for chunk in stream]
    assert status == 200
    assert summary(in_process) == summary(over_http)
    assert summary(in_process)["usage"]["completion_tokens"] > 0
    assert {key for chunk in in_process for key in chunk} == {
        key for chunk in over_http for key in chunk
    }


async def test_a_required_tool_is_called_with_whole_arguments(serving: Serving) -> None:
    with anyio.fail_after(120):
        answer = await serving.engine.complete(ChatCall("tool", BODIES["required tool"]))
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert call["function"]["arguments"].startswith('{"city"')


async def test_the_capital_of_france(serving: Serving) -> None:
    with anyio.fail_after(120):
        answer = await serving.engine.complete(ChatCall("paris", BODIES["text"]))
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."


REFUSED = {
    "unknown model": body(model="no-such-model"),
    "too many tokens": body(max_tokens=100_000),
    "no tokens": body(max_tokens=-1),
    "negative temperature": body(temperature=-1),
    "prompt too long": body("word " * 3000),
    "bad schema": body(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "bad", "schema": {"type": "nonsense"}},
        }
    ),
    "no messages": {"model": MODEL},
    "messages of the wrong type": body() | {"messages": "hello"},
    "role missing": body() | {"messages": [{"content": "hello"}]},
    "tool choice without tools": body(tool_choice="required"),
    "logprobs of the wrong type": body(top_logprobs=-5, logprobs=True),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_body_gets_the_status_and_type_of_vllms_http_server(
    serving: Serving, name: str, stream: bool
) -> None:
    chat = {**REFUSED[name], "stream": stream}
    with anyio.fail_after(60):
        status, over_http = await post_chat(_address(serving), chat)
        with pytest.raises(BackendError) as refusal:
            if stream:
                await anext(serving.engine.stream(ChatCall("refused", chat)))
            else:
                await serving.engine.complete(ChatCall("refused", chat))
    # A list: vLLM found out after it had answered 200, the error is the stream's first event.
    error: dict[str, Any] = over_http[0]["error"] if status == 200 else over_http["error"]
    status = error["code"]
    assert status >= 400
    assert (refusal.value.status, refusal.value.error_type) == (status, error["type"])
    # FastAPI puts the path of a field below "body".
    parameter: str | None = error["param"]
    assert refusal.value.parameter == (parameter and parameter.removeprefix("body."))
    assert serving.engine.calls_in_flight == 0
