"""The engine port over a stand-in for vLLM's chat serving: ends, aborts and errors."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.port import AbortReceipt, ChatCall, EngineDescription
from nnrp_sched.errors import BackendError
from nnrp_sched_patches.backend_errors import from_error_object, from_validation_error
from nnrp_sched_patches.live_calls import ABORTED_STATUS
from nnrp_sched_patches.vllm_engine import VllmEngine, parse_event

pytestmark = pytest.mark.anyio

DONE = "data: [DONE]\n\n"


class _Llm:
    """An AsyncLLM as far as the port looks: its tables, and an abort that empties them."""

    def __init__(self) -> None:
        self.output_processor = self
        self.request_states: dict[str, Any] = {}
        self.external_req_ids: dict[str, list[str]] = {}
        self.aborted: list[tuple[tuple[str, ...], bool]] = []

    def register(self, external_id: str, *, tokens: int = 0, parent: str | None = None) -> None:
        internal_id = f"{external_id}#{len(self.request_states)}"
        self.external_req_ids.setdefault(external_id, []).append(internal_id)
        self.request_states[internal_id] = SimpleNamespace(
            request_id=internal_id,
            parent_req=SimpleNamespace(request_id=parent) if parent else None,
            detokenizer=SimpleNamespace(num_output_tokens=lambda: tokens),
        )

    async def abort(self, ids: tuple[str, ...], internal: bool) -> None:
        self.aborted.append((ids, internal))
        self.request_states.clear()
        self.external_req_ids.clear()


class _Answer:
    def __init__(self, text: str) -> None:
        self._text = text

    def model_dump_json(self) -> str:
        return self._text


class _ErrorInfo:
    def __init__(self, **members: Any) -> None:
        self._members = members

    def model_dump(self) -> dict[str, Any]:
        return self._members


class _Chat:
    """OpenAIServingChat with the behaviour of one function."""

    def __init__(self, behave: Callable[[Any], Awaitable[Any]]) -> None:
        self._behave = behave
        self.bodies: list[dict[str, Any]] = []

    async def create_chat_completion(self, request: dict[str, Any], raw: None) -> Any:
        self.bodies.append(request)
        return await self._behave(request)

    @staticmethod
    def create_error_response(error: Exception) -> Any:
        info = _ErrorInfo(message=str(error), type="InternalServerError", param=None, code=500)
        return SimpleNamespace(error=info)


class _Request:
    @staticmethod
    def model_validate(body: dict[str, Any]) -> dict[str, Any]:
        return body


def _engine(behave: Callable[[Any], Awaitable[Any]]) -> tuple[VllmEngine, _Llm, _Chat]:
    llm, chat = _Llm(), _Chat(behave)
    description = EngineDescription(family="vllm", models=("m",), tool_calls=True)
    return VllmEngine(llm, chat, _Request, description), llm, chat


async def _events(*events: str) -> AsyncGenerator[str]:
    for event in events:
        await checkpoint()
        yield event


def _external(body: dict[str, Any]) -> str:
    return f"chatcmpl-{body['request_id']}"


async def test_a_body_reaches_vllm_with_nothing_changed_but_id_and_priority() -> None:
    async def answer(body: Any) -> Any:
        return _Answer('{"id": "x"}')

    engine, _, chat = _engine(answer)
    body = {"model": "m", "stream": False, "unknown": {"kept": 1}, "request_id": "theirs"}
    with anyio.fail_after(5):
        assert await engine.complete(ChatCall("one", body, priority=3)) == {"id": "x"}
    (seen,) = chat.bodies
    assert seen.pop("request_id").startswith("one-")
    assert seen.pop("priority") == 3
    assert seen == {"model": "m", "stream": False, "unknown": {"kept": 1}}
    assert body["request_id"] == "theirs"


async def test_each_event_of_the_stream_is_a_chunk_until_the_end_mark() -> None:
    async def answer(body: Any) -> Any:
        return _events('data: {"a":1}\n\n', 'data: {"b":"\\u00e9"}\n\n', DONE)

    engine, _, _ = _engine(answer)
    with anyio.fail_after(5):
        chunks = [chunk async for chunk in engine.stream(ChatCall("one", {"stream": True}))]
    assert chunks == [{"a": 1}, {"b": "é"}]
    assert engine.calls_in_flight == 0


async def test_an_error_inside_the_stream_is_raised_after_what_came_before() -> None:
    error = '{"error":{"message":"boom","type":"InternalServerError","param":null,"code":503}}'

    async def answer(body: Any) -> Any:
        return _events('data: {"a":1}\n\n', f"data: {error}\n\n", DONE)

    engine, _, _ = _engine(answer)
    stream = engine.stream(ChatCall("one", {"stream": True}))
    with anyio.fail_after(5):
        assert await anext(stream) == {"a": 1}
        with pytest.raises(BackendError, match="boom") as failure:
            await anext(stream)
    assert (failure.value.status, failure.value.error_type) == (503, "InternalServerError")


async def test_a_stream_without_its_end_mark_is_a_failure() -> None:
    async def answer(body: Any) -> Any:
        return _events('data: {"a":1}\n\n')

    engine, _, _ = _engine(answer)
    with anyio.fail_after(5), pytest.raises(BackendError, match="without its end mark"):
        async for _ in engine.stream(ChatCall("one", {"stream": True})):
            pass


async def test_what_vllm_raises_becomes_a_backend_error_by_its_own_words() -> None:
    async def answer(body: Any) -> Any:
        raise RuntimeError("engine dead")

    engine, _, _ = _engine(answer)
    with anyio.fail_after(5), pytest.raises(BackendError, match="engine dead") as failure:
        await engine.complete(ChatCall("one", {}))
    assert failure.value.status == 500
    assert engine.calls_in_flight == 0


async def test_a_stream_flag_that_only_vllm_reads_as_true_is_refused() -> None:
    async def answer(body: Any) -> Any:
        return _events(DONE)

    engine, _, _ = _engine(answer)
    with anyio.fail_after(5), pytest.raises(BackendError) as failure:
        await engine.complete(ChatCall("one", {"stream": "true"}))
    assert (failure.value.status, failure.value.parameter) == (400, "stream")


async def test_abort_of_an_id_that_is_not_in_flight_is_a_receipt_and_no_error() -> None:
    async def answer(body: Any) -> Any:
        return _Answer("{}")

    engine, llm, _ = _engine(answer)
    receipt = await engine.abort("nobody")
    assert (receipt.state, receipt.accepted, receipt.authoritative) == ("unknown", False, False)
    assert llm.aborted == []


@pytest.mark.parametrize(("tokens", "state"), [(0, "unknown"), (7, "running")])
async def test_abort_of_a_registered_call_goes_by_internal_id_and_tells_its_tokens(
    tokens: int, state: str
) -> None:
    registered, aborted = anyio.Event(), anyio.Event()

    async def answer(body: Any) -> Any:
        llm.register(_external(body), tokens=tokens)
        registered.set()
        await aborted.wait()
        return _Answer('{"finish_reason": "abort"}')

    engine, llm, chat = _engine(answer)
    replies: list[Any] = []
    receipts: list[AbortReceipt] = []

    async def serve() -> None:
        replies.append(await engine.complete(ChatCall("one", {})))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await registered.wait()
            assert engine.tokens("one") == tokens
            receipts.append(await engine.abort("one"))
            aborted.set()
    (receipt,) = receipts
    assert engine.tokens("one") is None
    assert (receipt.state, receipt.accepted, receipt.tokens) == (state, True, tokens)
    assert llm.aborted == [((f"{_external(chat.bodies[0])}#0",), True)]
    assert replies == [{"finish_reason": "abort"}]


async def test_several_choices_are_aborted_by_their_parent() -> None:
    async def answer(body: Any) -> Any:
        for _ in range(3):
            llm.register(_external(body), tokens=2, parent="parent")
        receipts.append(await engine.abort("one"))
        return _Answer("{}")

    receipts: list[Any] = []
    engine, llm, _ = _engine(answer)
    with anyio.fail_after(5):
        await engine.complete(ChatCall("one", {}))
    assert llm.aborted == [(("parent",), True)]
    assert receipts[0].tokens == 6


@pytest.mark.parametrize("cancelled", ["raised", "another's", "swallowed"])
@pytest.mark.parametrize("streams", [False, True])
async def test_abort_while_vllm_admits_ends_the_call_with_its_own_error(
    streams: bool, cancelled: str
) -> None:
    admitting = anyio.Event()

    async def answer(body: Any) -> Any:
        if body.get("stream"):
            return waiting()
        return await forever()

    async def waiting() -> AsyncGenerator[str]:
        await forever()
        yield DONE

    async def forever() -> Any:
        admitting.set()
        try:
            await anyio.Event().wait()
        except asyncio.CancelledError:
            if cancelled == "raised":
                raise
            if cancelled == "swallowed":
                return _Answer("{}")
        # As of a future that was cancelled: nothing in it tells of the scope.
        raise asyncio.CancelledError

    engine, llm, _ = _engine(answer)
    failures: list[BackendError] = []
    receipts: list[AbortReceipt] = []

    async def serve() -> None:
        with pytest.raises(BackendError) as failure:
            if streams:
                async for _ in engine.stream(ChatCall("one", {"stream": True})):
                    pass
            else:
                await engine.complete(ChatCall("one", {}))
        failures.append(failure.value)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await admitting.wait()
            receipts.append(await engine.abort("one"))
    (receipt,) = receipts
    assert (receipt.state, receipt.accepted, receipt.tokens) == ("admitting", True, 0)
    assert [failure.status for failure in failures] == [ABORTED_STATUS]
    assert engine.calls_in_flight == 0
    assert llm.aborted == []


async def test_a_call_cancelled_inside_vllms_admission_leaves_nothing_registered() -> None:
    admitting = anyio.Event()

    async def answer(body: Any) -> Any:
        # vLLM registers first and then awaits the send to the engine: cancelled in between, it
        # forgets the request.
        llm.register(_external(body))
        admitting.set()
        await anyio.Event().wait()

    engine, llm, _ = _engine(answer)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.complete, ChatCall("one", {}))
            await admitting.wait()
            tasks.cancel_scope.cancel()
    assert llm.request_states == {}
    assert engine.calls_in_flight == 0


@pytest.mark.parametrize("by", ["scope", "task"])
async def test_a_cancellation_that_vllm_turns_into_an_error_still_cancels(by: str) -> None:
    started = anyio.Event()

    async def answer(body: Any) -> Any:
        started.set()
        try:
            await anyio.Event().wait()
        except asyncio.CancelledError:
            return SimpleNamespace(error=_ErrorInfo(message="Client disconnected", code=400))

    engine, _, _ = _engine(answer)
    with anyio.fail_after(5):
        if by == "scope":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(engine.complete, ChatCall("one", {}))
                await started.wait()
                tasks.cancel_scope.cancel()
        else:
            task = asyncio.create_task(engine.complete(ChatCall("one", {})))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert engine.calls_in_flight == 0


@pytest.mark.parametrize("streams", [False, True])
async def test_a_callers_scope_knows_its_cancellation_though_vllm_puts_another_in_its_place(
    streams: bool,
) -> None:
    started = anyio.Event()

    async def answer(body: Any) -> Any:
        return waiting() if body.get("stream") else await forever()

    async def waiting() -> AsyncGenerator[str]:
        await forever()
        yield DONE

    async def forever() -> Any:
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await anyio.Event().wait()
        # As of a future that was cancelled: nothing in it tells of the scope.
        raise asyncio.CancelledError

    engine, _, _ = _engine(answer)
    scope = anyio.CancelScope()

    async def serve() -> None:
        with scope:
            if streams:
                await anext(engine.stream(ChatCall("one", {"stream": True})))
            else:
                await engine.complete(ChatCall("one", {}))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await started.wait()
            scope.cancel()
    assert scope.cancelled_caught
    assert engine.calls_in_flight == 0


async def test_closing_a_stream_early_releases_the_request() -> None:
    async def answer(body: Any) -> Any:
        llm.register(_external(body), tokens=1)
        return _events('data: {"a":1}\n\n', 'data: {"a":2}\n\n', DONE)

    engine, llm, _ = _engine(answer)
    with anyio.fail_after(5):
        stream = engine.stream(ChatCall("one", {"stream": True}))
        assert await anext(stream) == {"a": 1}
        await stream.aclose()
    assert llm.request_states == {}
    assert engine.calls_in_flight == 0


async def test_two_calls_with_one_id_keep_apart_and_both_hear_an_abort() -> None:
    both = anyio.Event()

    async def answer(body: Any) -> Any:
        if len(chat.bodies) == 2:
            both.set()
        await anyio.Event().wait()

    engine, _, chat = _engine(answer)
    ended: list[int] = []

    async def serve() -> None:
        with pytest.raises(BackendError):
            await engine.complete(ChatCall("same", {}))
        ended.append(1)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            tasks.start_soon(serve)
            await both.wait()
            await engine.abort("same")
    first, second = (body["request_id"] for body in chat.bodies)
    assert first != second
    assert ended == [1, 1]


def test_a_pydantic_error_names_the_field_without_pydantics_own_words() -> None:
    class Fault(ValueError):
        def errors(self, **_: bool) -> list[dict[str, Any]]:
            location = ("messages", 0, "function-wrap[check()]", "list[union]", "content")
            return [{"loc": location, "msg": "Field required", "type": "missing"}]

    error = from_validation_error(Fault())
    assert (error.status, error.parameter) == (400, "messages.0.content")
    assert error.message == "messages.0.content: Field required"


def test_an_error_object_without_members_is_a_server_failure() -> None:
    assert from_error_object({}).status == 500


@pytest.mark.parametrize("text", [DONE, "data:[DONE]", "[DONE]"])
def test_the_end_mark_is_no_chunk(text: str) -> None:
    assert parse_event(text) is None


@pytest.mark.parametrize("by_whom", ["an abort", "nobody"])
async def test_a_choice_aborted_before_its_first_token_ends_with_that_reason(by_whom: str) -> None:
    """vLLM's own stream leaves that end out (`choice_ends`)."""
    registered = anyio.Event()
    go_on = anyio.Event()

    async def answer(body: Any) -> AsyncGenerator[str]:
        external = _external(body)
        llm.register(external)
        llm.register(external)

        async def events() -> AsyncGenerator[str]:
            yield 'data: {"id":"x","model":"m","choices":[{"index":0,"delta":{}}]}\n\n'
            yield 'data: {"choices":[{"index":1,"delta":{},"finish_reason":"length"}]}\n\n'
            registered.set()
            await go_on.wait()
            yield 'data: {"id":"x","model":"m","choices":[],"usage":{}}\n\n'
            yield DONE

        return events()

    engine, llm, _ = _engine(answer)
    chunks: list[Any] = []

    async def serve() -> None:
        call = ChatCall("one", {"stream": True, "n": 2})
        chunks.extend([chunk async for chunk in engine.stream(call)])

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await registered.wait()
            if by_whom == "an abort":
                assert (await engine.abort("one")).accepted
            go_on.set()
    ended: dict[str, Any] = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "abort"}
    expected: list[Any] = (
        [{"id": "x", "model": "m", "choices": [ended]}] if by_whom == "an abort" else []
    )
    assert chunks[3:] == expected
