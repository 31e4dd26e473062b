"""Stopping chats of a real engine: nothing stays behind, and the neighbours go on."""

import random
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.port import AbortReceipt, ChatCall
from nnrp_sched.errors import BackendError
from nnrp_sched_patches.launch import Serving
from nnrp_sched_patches.live_calls import ABORTED_STATUS
from tests.support.vllm_http import get

pytestmark = pytest.mark.anyio

MODEL = "SmolLM2-135M-Instruct"


def body(**members: Any) -> dict[str, Any]:
    """A chat that would go on for long."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Count."}]}
    return {**chat, "temperature": 0, "max_tokens": 1500, "ignore_eos": True, **members}


def _left_behind(serving: Serving) -> tuple[int, ...]:
    processor = serving.engine.async_llm.output_processor
    return (
        len(processor.request_states),
        len(processor.parent_requests),
        len(processor.external_req_ids),
        serving.engine.calls_in_flight,
    )


async def _engine_is_idle(serving: Serving) -> None:
    """Come back when frontend and engine hold no request any more.

    A chat of these tests that stayed in the engine would keep it busy for longer than the deadline.
    """
    assert serving.http is not None
    assert _left_behind(serving) == (0, 0, 0, 0)
    with anyio.fail_after(15):
        while True:
            # The engine counts at each step, and an idle one makes none.
            await serving.engine.complete(ChatCall("step", body(max_tokens=1)))
            _, metrics = await get(serving.http, "/metrics")
            counts = [
                float(line.rpartition(" ")[2])
                for line in metrics.splitlines()
                if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
            ]
            assert len(counts) == 2
            if not any(counts):
                break
    assert _left_behind(serving) == (0, 0, 0, 0)


async def _tokens_later(serving: Serving, tokens: int) -> None:
    """Come back when the engine has made so many tokens: a clock that runs with the engine."""
    chat = body(stream=True, max_tokens=tokens)
    async for _ in serving.engine.stream(ChatCall("clock", chat)):
        pass


async def test_an_aborted_stream_ends_with_what_it_had(serving: Serving) -> None:
    finished: list[str] = []
    receipts: list[AbortReceipt] = []
    with anyio.fail_after(120):
        chunks = 0
        async for chunk in serving.engine.stream(ChatCall("one", body(stream=True))):
            chunks += 1
            finished += [choice["finish_reason"] for choice in chunk["choices"]]
            if chunks == 5:
                receipts.append(await serving.engine.abort("one"))
    (receipt,) = receipts
    assert (receipt.state, receipt.accepted, receipt.authoritative) == ("running", True, True)
    assert receipt.tokens is not None
    assert 1 <= receipt.tokens <= 20
    assert finished[-1] == "abort"
    await _engine_is_idle(serving)


async def test_an_aborted_whole_answer_comes_at_once_with_what_it_had(serving: Serving) -> None:
    answers: list[Any] = []
    receipts: list[AbortReceipt] = []

    async def serve() -> None:
        answers.append(await serving.engine.complete(ChatCall("one", body())))

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await _tokens_later(serving, 8)
            receipts.append(await serving.engine.abort("one"))
    assert receipts[0].accepted
    assert answers[0]["choices"][0]["finish_reason"] == "abort"
    assert answers[0]["usage"]["completion_tokens"] < 1500
    await _engine_is_idle(serving)


async def test_an_abort_in_the_first_moment_is_answered_and_final(serving: Serving) -> None:
    outcomes: list[Any] = []
    receipts: list[AbortReceipt] = []

    async def serve() -> None:
        try:
            outcomes.append(await serving.engine.complete(ChatCall("one", body())))
        except BackendError as error:
            outcomes.append(error)

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            while not serving.engine.calls_in_flight:
                await checkpoint()
            receipts.append(await serving.engine.abort("one"))
    (receipt,) = receipts
    assert receipt.accepted
    (outcome,) = outcomes
    if receipt.state == "admitting":
        assert isinstance(outcome, BackendError)
        assert outcome.status == ABORTED_STATUS
    else:
        assert outcome["choices"][0]["finish_reason"] == "abort"
    await _engine_is_idle(serving)


@pytest.mark.parametrize("steps", [1, 2, 5, 20, 200])
async def test_a_call_cancelled_at_any_moment_leaves_nothing_behind(
    serving: Serving, steps: int
) -> None:
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(serving.engine.complete, ChatCall(f"{number}", body()))
            for _ in range(steps):
                await checkpoint()
            tasks.cancel_scope.cancel()
    await _engine_is_idle(serving)


async def test_many_calls_cancelled_and_aborted_at_random_moments_leave_nothing_behind(
    serving: Serving,
) -> None:
    chance = random.Random(7)
    engine = serving.engine

    async def serve(request_id: str, ending: str) -> None:
        with anyio.move_on_after(chance.uniform(0, 1)) as patience:
            try:
                if chance.random() < 0.5:
                    await engine.complete(ChatCall(request_id, body()))
                else:
                    async for _ in engine.stream(ChatCall(request_id, body(stream=True))):
                        pass
            except BackendError as error:
                assert error.status == ABORTED_STATUS
        # None of them can come to its natural end in that time.
        assert patience.cancelled_caught or ending == "abort"

    async def abort(request_id: str) -> None:
        for _ in range(chance.randrange(200)):
            await checkpoint()
        await engine.abort(request_id)

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for number in range(80):
                ending = chance.choice(("abort", "cancel"))
                tasks.start_soon(serve, f"{number}", ending)
                if ending == "abort":
                    tasks.start_soon(abort, f"{number}")
    await _engine_is_idle(serving)


async def test_a_stream_left_early_leaves_nothing_behind(serving: Serving) -> None:
    with anyio.fail_after(120):
        stream = serving.engine.stream(ChatCall("one", body(stream=True)))
        await anext(stream)
        await stream.aclose()
    await _engine_is_idle(serving)


async def test_several_choices_are_aborted_together_and_leave_no_parent(serving: Serving) -> None:
    chat = body(stream=True, n=3, temperature=1.0, seed=1)
    finished: dict[int, str] = {}
    with anyio.fail_after(120):
        chunks = 0
        async for chunk in serving.engine.stream(ChatCall("one", chat)):
            chunks += 1
            for choice in chunk["choices"]:
                finished[choice["index"]] = choice["finish_reason"]
            if chunks == 12:
                receipt = await serving.engine.abort("one")
                assert (receipt.state, receipt.accepted) == ("running", True)
    assert finished == {0: "abort", 1: "abort", 2: "abort"}
    await _engine_is_idle(serving)


async def test_an_abort_of_an_unknown_or_ended_call_says_so(serving: Serving) -> None:
    with anyio.fail_after(120):
        await serving.engine.complete(ChatCall("done", body(max_tokens=2)))
        for request_id, state in (("done", "finished"), ("never", "unknown")):
            receipt = await serving.engine.abort(request_id)
            assert (receipt.state, receipt.accepted) == (state, False)


async def test_two_calls_with_one_id_are_not_mixed_up(serving: Serving) -> None:
    async def serve(question: str, answers: dict[str, str]) -> None:
        chat = body(ignore_eos=False, max_tokens=20) | {
            "messages": [{"role": "user", "content": question}]
        }
        answer = await serving.engine.complete(ChatCall("same", chat))
        answers[question] = answer["choices"][0]["message"]["content"]

    questions = ("What is the capital of France?", "Name a colour.")
    apart: dict[str, str] = {}
    together: dict[str, str] = {}
    with anyio.fail_after(120):
        for question in questions:
            await serve(question, apart)
        async with anyio.create_task_group() as tasks:
            for question in questions:
                tasks.start_soon(serve, question, together)
    assert together == apart
    assert len(set(apart.values())) == 2


async def test_an_abort_leaves_the_neighbours_text_as_it_was(serving: Serving) -> None:
    question = body(ignore_eos=False, max_tokens=30) | {
        "messages": [{"role": "user", "content": "What is the capital of France?"}]
    }
    with anyio.fail_after(120):
        alone = await serving.engine.complete(ChatCall("alone", question))
        answers: list[Any] = []

        async def serve() -> None:
            answers.append(await serving.engine.complete(ChatCall("neighbour", question)))

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(serving.engine.complete, ChatCall(f"victim-{number}", body()))
            tasks.start_soon(serve)
            await _tokens_later(serving, 4)
            for number in range(3):
                await serving.engine.abort(f"victim-{number}")
    text = answers[0]["choices"][0]["message"]["content"]
    assert text == alone["choices"][0]["message"]["content"]
