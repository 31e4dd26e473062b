"""The same chat in-process and over vLLM's own HTTP server gives the same."""

from typing import Any

import anyio
import pytest

from nnrp_sched.engine.port import ChatCall
from nnrp_sched.errors import BackendError
from nnrp_sched_patches.launch import Serving
from tests.support.vllm_chats import BODIES, MALFORMED, REFUSED, without_identity
from tests.support.vllm_http import post_chat, summary

pytestmark = pytest.mark.anyio


def _address(serving: Serving) -> str:
    assert serving.http is not None
    return serving.http


@pytest.mark.parametrize("name", [*BODIES, "text without a stream key"])
async def test_a_whole_answer_is_the_same_object(serving: Serving, name: str) -> None:
    chat = {**BODIES[name], "stream": False} if name in BODIES else BODIES["text"]
    with anyio.fail_after(120):
        status, over_http = await post_chat(_address(serving), chat)
        in_process = await serving.engine.complete(ChatCall("same", chat))
    assert status == 200
    assert without_identity(in_process) == without_identity(over_http)


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_body_gets_the_status_and_type_of_vllms_http_server(
    serving: Serving, name: str, stream: bool
) -> None:
    chat = {**REFUSED[name], "stream": stream}
    with anyio.fail_after(120):
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
    if parameter is None and name in MALFORMED:
        # Older versions of vLLM leave out what is at fault there; in-process it is known.
        assert refusal.value.parameter is not None
    else:
        assert refusal.value.parameter == (parameter and parameter.removeprefix("body."))
    assert serving.engine.calls_in_flight == 0
