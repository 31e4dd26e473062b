"""`AsyncOpenAI` over NNRP, for httpx and for httpx2.

The traps that "orchestration anchors" 2c lists have their number in the test's name, cases of users
(section 3) theirs.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import httpx
import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ParsedChatCompletion

from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.embed.http_library import STREAM
from nnrp_sched_orchestrator.embed.openai_client import async_openai
from nnrp_sched_orchestrator.embed.openai_transport import BASE_URL, transport
from nnrp_sched_orchestrator.embed.records import EmbedSettings
from nnrp_sched_orchestrator.running import StreamSettings
from tests.support.embedding import (
    SECONDS,
    Embedded,
    ask,
    ask_streamed,
    ask_whole,
    asked,
    embedded,
)
from tests.support.serving import MODEL, body, script
from tests.support.spans import Spans
from tests.support.stepped_engine import stepped

pytestmark = pytest.mark.anyio

AT_ONCE = EmbedSettings(retry_seconds=0)
ENDLESS = script(text="x", hold=True)
LONG = stepped(*["word "] * 50)

Client = Callable[..., AbstractAsyncContextManager[AsyncOpenAI]]


@pytest.fixture(params=["httpx2", "httpx"])
def client(request: pytest.FixtureRequest) -> Client:
    """Makes a client over one of the two libraries."""

    @asynccontextmanager
    async def make(
        served: Embedded, settings: EmbedSettings | None = None, **options: Any
    ) -> AsyncGenerator[AsyncOpenAI]:
        library: Any = {"httpx2": httpx2, "httpx": httpx}[request.param]
        over = transport(served.agent, request.param, settings)
        served.gateway = over.gateway
        http_client = library.AsyncClient(transport=over)
        options = {"api_key": "none", "base_url": BASE_URL, **options}
        async with AsyncOpenAI(http_client=http_client, **options) as made:
            yield made

    return make


# --- what it serves -----------------------------------------------------------------------------


async def test_a_whole_answer(client: Client) -> None:
    async with embedded() as served, client(served) as made:
        answer = await ask_whole(made, body("hello"))
        assert answer.choices[0].message.content == "You said: hello"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3
        assert served.agent.spent.tokens == 3


async def test_a_reply_names_its_stream_and_has_the_proof_of_its_end(client: Client) -> None:
    async with embedded() as served, client(served) as made:
        create: Any = made.chat.completions.with_raw_response.create
        reply = await create(**asked(body("hello")))
        assert reply.request_id == "embedded#1"
        receipt = reply.http_response.extensions[STREAM].receipt
        assert (receipt.stream_id, receipt.state) == ("embedded#1", "finished")
        assert (receipt.accepted, receipt.authoritative) == (False, True)


async def test_a_stream_says_what_the_whole_answer_says(client: Client) -> None:
    async with embedded() as served, client(served) as made:
        stream = await ask_streamed(made, body("hello"), stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert text == "You said: hello"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 3
        assert len({chunk.id for chunk in chunks}) == 1


async def test_tool_calls_come_in_pieces_and_whole(client: Client) -> None:
    calls = [{"name": "grep", "arguments": '{"pattern": "needle"}', "id": "call_1"}]
    chat = script(text="Looking.", tool_calls=calls)
    async with embedded() as served, client(served) as made:
        whole = await ask_whole(made, chat)
        stream: Any = made.chat.completions.stream
        async with stream(**asked(chat)) as pieces:
            final: ParsedChatCompletion[None] = await pieces.get_final_completion()
        for answer in (whole, final):
            (call,) = answer.choices[0].message.tool_calls or []
            assert call.type == "function"
            assert call.id == "call_1"
            assert (call.function.name, call.function.arguments) == (
                "grep",
                '{"pattern": "needle"}',
            )
            assert answer.choices[0].finish_reason == "tool_calls"
            assert answer.choices[0].message.content == "Looking."


async def test_the_models_are_those_of_the_capability_document(client: Client) -> None:
    async with embedded() as served, client(served) as made:
        models = [model.id async for model in made.models.list()]
        assert models == ["example-model", "backend-error", "reference-model"]
        assert (await made.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError, match="the model 'other' does not exist"):
            await made.models.retrieve("other")


async def test_what_nnrp_does_not_carry_is_a_clear_404(client: Client) -> None:
    async with embedded() as served, client(served) as made:
        with pytest.raises(openai.NotFoundError, match="/v1/responses is not served over NNRP"):
            await made.responses.create(model=MODEL, input="hello")
        with pytest.raises(openai.NotFoundError, match="/v1/embeddings is not served over NNRP"):
            await made.embeddings.create(model=MODEL, input="hello")
        assert not served.engine.calls


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_errors_before_the_answer_have_a_status_and_the_profiles_code(
    client: Client, streamed: bool
) -> None:
    async with embedded() as served, client(served) as made:
        with pytest.raises(openai.NotFoundError) as unknown:
            await ask(made, {**body(), "model": "other"}, stream=streamed)
        assert unknown.value.code == "unsupported_model"
        with pytest.raises(openai.BadRequestError) as invalid:
            await ask(made, body(n=0), stream=streamed)
        assert invalid.value.code == "invalid_backend_request"
        assert len(served.engine.calls) == 2


async def test_a_failure_in_the_middle_of_a_stream_is_an_error_of_the_stream(
    client: Client,
) -> None:
    async with embedded() as served, client(served) as made:
        stream = await ask_streamed(made, script(text=["a", "b", "c"], fail_after=2))
        with pytest.raises(openai.APIError) as failed:
            async for _ in stream:
                pass
        assert failed.value.code == "backend_error"


async def test_a_call_that_its_agent_cancels_is_no_answer(client: Client) -> None:
    async with embedded() as served, client(served) as made:

        async def create() -> None:
            with pytest.raises(openai.APIStatusError) as ended:
                await ask_whole(made, LONG)
            assert ended.value.status_code == 499
            assert "not needed any more" in ended.value.message

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create)
            await served.calls(1)
            await served.agent.cancel("not needed any more")


# --- ends ---------------------------------------------------------------------------------------


async def test_2c1_the_end_of_a_stream_is_no_cancel(client: Client) -> None:
    async with embedded() as served, client(served) as made:
        for _ in range(20):
            stream = await ask_streamed(made, body("hello"))
            async for _ in stream:
                pass
            await stream.close()
        await served.idle()
        assert served.agent.receipts == ()


async def test_2c2_a_stream_left_by_break_is_found_by_its_full_buffer(client: Client) -> None:
    quick = StreamSettings(buffer_events=4, stall_seconds=0.05)
    endless = script(text="x", repeat=100_000, hold=True)
    async with embedded(stream=quick) as served, client(served) as made:
        stream = await ask_streamed(made, endless)
        async for _ in stream:
            break
        receipt = await served.stopped()
        assert receipt.accepted
        assert receipt.authoritative
        await served.idle()
        with pytest.raises(openai.APIError) as left:
            async for _ in stream:
                pass
        assert left.value.code == "abandoned"


async def test_2c2_a_stream_that_is_forgotten_is_stopped(client: Client) -> None:
    async with embedded() as served, client(served) as made:
        async for _ in await ask_streamed(made, ENDLESS):
            break
        receipt = await served.stopped(forgotten=True)
        assert (receipt.accepted, receipt.authoritative) == (True, True)


async def test_a_stream_left_by_its_block_is_stopped_before_the_block_ends(
    client: Client,
) -> None:
    async with embedded() as served, client(served) as made:
        async with await ask_streamed(made, ENDLESS) as stream:
            async for _ in stream:
                break
        (receipt,) = served.agent.receipts
        assert (receipt.state, receipt.accepted, receipt.authoritative) == ("running", True, True)
        assert receipt.tokens == 1


@pytest.mark.parametrize("how", ["task.cancel", "wait_for", "scope"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_2c3_cancelling_the_task_stops_the_call(
    client: Client, how: str, streamed: bool
) -> None:
    async with embedded() as served, client(served) as made:

        async def use() -> None:
            answer = await ask(made, ENDLESS, stream=streamed)
            async for _ in answer:
                pass

        await leave(use, how, served)
        receipt = await served.stopped()
        assert (receipt.accepted, receipt.authoritative) == (True, True)
        await served.idle()


async def leave(use: Callable[[], Any], how: str, served: Embedded) -> None:
    """Run something until the engine has its call, and cancel it then."""
    with anyio.fail_after(SECONDS):
        if how == "scope":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(use)
                await served.calls(1)
                tasks.cancel_scope.cancel()
            return
        task = asyncio.ensure_future(use())
        waiting = asyncio.ensure_future(asyncio.wait_for(task, None))
        await served.calls(1)
        (task if how == "task.cancel" else waiting).cancel()
        for each in (task, waiting):
            with pytest.raises(asyncio.CancelledError):
                await each


@pytest.mark.parametrize("streamed", [False, True])
async def test_2c3_a_call_that_waits_in_the_engine_is_cancelled_before_any_header(
    client: Client, streamed: bool
) -> None:
    async with embedded(slots=1) as served, client(served) as made:
        stream = await ask_streamed(made, ENDLESS)
        async with stream:

            async def wait() -> None:
                await ask(made, body("later"), stream=streamed)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await served.calls(2)
                tasks.cancel_scope.cancel()
            receipt = await served.stopped()
            assert (receipt.state, receipt.tokens) == ("waiting", 0)
            assert (receipt.accepted, receipt.authoritative) == (True, True)


# --- retries and timeouts -----------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_2c4_the_retry_of_a_timed_out_call_takes_it_over(
    client: Client, streamed: bool
) -> None:
    async with embedded() as served, client(served, timeout=0.05, max_retries=1) as made:
        texts: list[str] = []

        async def create() -> None:
            answer = await ask(made, stepped("a", "b"), stream=streamed)
            if streamed:
                pieces = [
                    choice.delta.content async for chunk in answer for choice in chunk.choices
                ]
                texts.append("".join(piece or "" for piece in pieces))
            else:
                texts.append(answer.choices[0].message.content)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create)
            await served.calls(1)
            await served.given_up()
            served.engine.let(2)
        assert texts == ["ab"]
        assert len(served.engine.calls) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_t52_nested_retries_are_one_request_to_the_engine(
    client: Client, streamed: bool
) -> None:
    async with embedded() as served, client(served, timeout=0.02, max_retries=1) as made:
        for _ in range(3):
            with pytest.raises(openai.APITimeoutError):
                await ask_whole(made, stepped("a"), stream=streamed)
        assert len(served.engine.calls) == 1
        served.engine.let(1)
        patient = made.with_options(timeout=SECONDS)
        await ask(patient, stepped("a"), stream=streamed)
        assert len(served.engine.calls) == 1


async def test_a_timed_out_call_that_nobody_takes_over_is_stopped(client: Client) -> None:
    soon = EmbedSettings(retry_seconds=0.01)
    async with embedded() as served, client(served, soon, timeout=0.02, max_retries=0) as made:
        with pytest.raises(openai.APITimeoutError):
            await ask_whole(made, LONG)
        receipt = await served.stopped()
        assert "its client timed out, no retry" in receipt.reason
        assert (receipt.accepted, receipt.authoritative) == (True, True)


async def test_closing_the_client_stops_what_has_timed_out(client: Client) -> None:
    async with embedded() as served:
        async with client(served, timeout=0.02, max_retries=0) as made:
            with pytest.raises(openai.APITimeoutError):
                await ask_whole(made, LONG)
        (receipt,) = served.agent.receipts
        assert receipt.reason == "its client was closed"


async def test_t53_the_old_call_is_stopped_before_a_retry_starts_another(client: Client) -> None:
    async with embedded() as served, client(served, AT_ONCE, timeout=0.02, max_retries=1) as made:
        with pytest.raises(openai.APITimeoutError):
            await ask_whole(made, LONG)
        assert len(served.engine.calls) == 2
        first, second = served.agent.receipts
        assert (first.accepted, first.authoritative) == (True, True)
        assert (second.accepted, second.authoritative) == (True, True)
        await served.idle()


async def test_calls_that_time_out_have_a_bounded_room(client: Client) -> None:
    few = EmbedSettings(unclaimed_limit=2)
    async with embedded() as served, client(served, few, timeout=0.02, max_retries=0) as made:
        for number in range(4):
            with pytest.raises(openai.APITimeoutError):
                await ask_whole(made, stepped("a", "b"), seed=number)
        with anyio.fail_after(SECONDS):
            while len(served.agent.receipts) < 2:
                await anyio.lowlevel.checkpoint()
        assert [receipt.reason for receipt in served.agent.receipts] == [
            "2 others timed out after it"
        ] * 2
        await served.given_up(2)


async def test_2c4_what_had_output_already_is_not_made_again(client: Client) -> None:
    async with embedded() as served, client(served, max_retries=2) as made:
        with pytest.raises(openai.InternalServerError):
            await ask(made, script(text=["a", "b", "c"], fail_after=2))
        assert len(served.engine.calls) == 1


async def test_2c4_a_refused_call_is_tried_again(client: Client) -> None:
    async with embedded() as served, client(served, max_retries=1) as made:
        with pytest.raises(openai.InternalServerError) as refused:
            await ask_whole(made, script(fail_status=503))
        assert refused.value.status_code == 503
        assert len(served.engine.calls) == 2


async def test_a_budget_that_is_spent_is_told_once(client: Client) -> None:
    async with embedded(budget=Budget(tokens=2)) as served, client(served) as made:
        with pytest.raises(openai.RateLimitError) as spent:
            await ask_whole(made, stepless("a", "b", "c"))
        assert spent.value.code == "budget_exceeded"
        assert len(served.engine.calls) == 1
        assert served.agent.spent.tokens == 2


def stepless(*pieces: str) -> dict[str, Any]:
    return script(text=list(pieces))


async def test_2c5_t54_a_stream_in_which_nothing_comes_ends_by_the_clients_timeout(
    client: Client,
) -> None:
    async with embedded() as served, client(served, timeout=0.05) as made:
        served.engine.let(1)
        stream = await ask_streamed(made, stepped("a", "b"))
        texts: list[str | None] = []
        with pytest.raises(openai.APITimeoutError):
            async for chunk in stream:
                texts += [choice.delta.content for choice in chunk.choices]
        assert texts == ["a"]
        (receipt,) = served.agent.receipts
        assert (receipt.state, receipt.accepted, receipt.authoritative) == ("running", True, True)


async def test_t55_the_clients_timeout_counts_in_the_queue_and_the_queue_is_to_be_seen(
    client: Client,
) -> None:
    async with embedded(slots=1) as served, client(served, AT_ONCE, max_retries=0) as made:
        stream = await ask_streamed(made, ENDLESS)
        async with stream:

            async def create() -> None:
                with pytest.raises(openai.APITimeoutError):
                    await ask(made, body("later"), timeout=1.0)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(create)
                await served.calls(2)
                with anyio.fail_after(SECONDS):
                    while served.agent.snapshot().streams[-1].state.position is None:
                        await anyio.lowlevel.checkpoint()
                waiting = served.agent.snapshot().streams[-1].state
                assert (waiting.kind, waiting.where) == ("queued", "engine")
            (receipt,) = served.agent.receipts
            assert (receipt.state, receipt.accepted, receipt.tokens) == ("waiting", True, 0)


async def test_without_a_timeout_the_header_counts_and_without_both_a_call_takes_its_time(
    client: Client,
) -> None:
    late = {"x-stainless-read-timeout": "0.02"}
    async with embedded() as served, client(served, timeout=None, max_retries=0) as made:
        with pytest.raises(openai.APITimeoutError):
            await ask(made, ENDLESS, extra_headers=late)
        served.engine.let(1)
        answer = await ask_whole(made, stepped("a"))
        assert answer.choices[0].message.content == "a"


async def test_2c6_the_callers_span_is_the_parent_of_the_call(client: Client) -> None:
    spans = Spans()
    tracer = spans.provider.get_tracer("test")
    async with embedded(provider=spans.provider) as served, client(served) as made:
        with tracer.start_as_current_span("current") as current:
            await ask_whole(made, body("one"))
            with tracer.start_as_current_span("other") as other:
                context = other.get_span_context()
            named = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-01"}
            await ask_whole(made, body("two"), extra_headers=named)
        await ask_whole(made, body("three"))
        parents = [
            span.parent.span_id
            for span in spans.finished
            if span.name.startswith("chat ") and span.parent is not None
        ]
        ours = int(served.agent.traceparent.split("-")[2], 16)
        assert parents == [
            current.get_span_context().span_id,
            context.span_id,
            ours,
        ]


# --- the client by itself -----------------------------------------------------------------------


async def test_async_openai_is_all_of_it_in_one_call() -> None:
    async with embedded() as served, async_openai(served.agent, max_retries=0) as made:
        answer = await ask_whole(made, body("hello"))
        assert answer.choices[0].message.content == "You said: hello"
        assert made.max_retries == 0


async def test_a_client_of_another_event_loop_is_refused() -> None:
    async with embedded() as served, async_openai(served.agent, max_retries=0) as made:

        def elsewhere() -> None:
            asyncio.run(ask(made, body()))

        with pytest.raises(RuntimeError, match="belongs to the event loop of its agent"):
            await anyio.to_thread.run_sync(elsewhere)


async def test_an_endpoint_that_is_gone_is_a_connection_error(client: Client) -> None:
    async with embedded() as served, client(served, max_retries=0) as made:
        await served.host.kill()
        with pytest.raises(openai.APIConnectionError):
            await ask_whole(made, body())


async def test_requests_with_one_idempotency_key_are_one_call(client: Client) -> None:
    async with embedded() as served, client(served) as made:
        texts: list[str | None] = []

        async def create() -> None:
            headers = {"Idempotency-Key": "headline-7"}
            answer = await ask_whole(made, stepped("a", "b"), extra_headers=headers)
            texts.append(answer.choices[0].message.content)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create)
            tasks.start_soon(create)
            await served.calls(1)
            served.engine.let(2)
        assert texts == ["ab", "ab"]
        assert len(served.engine.calls) == 1


async def test_a_client_does_not_notice_that_its_server_was_started_again(client: Client) -> None:
    async with embedded() as served, client(served, max_retries=0) as made:
        answers: list[str | None] = []

        async def create() -> None:
            answer = await ask_whole(made, stepped("a", "b"))
            answers.append(answer.choices[0].message.content)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create)
            await served.calls(1)
            await start_again(served)
            served.engine.let(20)
        assert answers == ["ab"]


async def test_a_stream_goes_on_where_it_was_when_its_server_was_started_again(
    client: Client,
) -> None:
    async with embedded() as served, client(served, max_retries=0) as made:
        served.engine.let(1)
        stream = await ask_streamed(made, stepped("a", "b"))
        first = await anext(stream)
        await start_again(served)
        served.engine.let(20)
        rest = [chunk.choices[0] async for chunk in stream]
        assert first.choices[0].delta.content == "a"
        assert [choice.delta.content for choice in rest] == ["b", None]
        assert rest[-1].finish_reason == "stop"


async def start_again(served: Embedded) -> None:
    """End the server without a word, and wait until the next has the call.

    That of the old server may be in the engine for another moment, and take steps.
    """
    await served.host.kill()
    await served.host.start()
    await served.calls(2)
