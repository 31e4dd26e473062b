"""Asking the engine process who it is, over a stand-in for vLLM's utility RPC."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

from nnrp_sched_patches import install
from nnrp_sched_patches.channel import EngineGone, EngineRefused, EngineSilent, call_engine
from nnrp_sched_patches.hello import (
    engine_hello,
    frontend_hello,
    hello_receipts,
    live_engines,
    register_engine,
)
from tests.support.toy_vllm import ENGINE, binding, hook

pytestmark = pytest.mark.anyio


class _Scheduler:
    pass


class _AsyncScheduler(_Scheduler):
    pass


class _Engine:
    """As far as the channel looks at an AsyncLLM; `answer` is the engine process."""

    def __init__(self, answer: Any) -> None:
        self.engine_core = self
        self.output_handler: asyncio.Task[None] | None = None
        self.errored = False
        self.answer = answer

    async def call_utility_async(self, method: str, payload: dict[str, Any]) -> Any:
        return await self.answer(method, payload)


async def _never(method: str, payload: dict[str, Any]) -> Any:
    await asyncio.Event().wait()


async def _refuse(method: str, payload: dict[str, Any]) -> Any:
    raise Exception(f"Call to {method} method failed: no attribute")  # as vLLM words it


def _core() -> Any:
    def step_with_batch_queue() -> None:
        """What EngineCore runs at each step."""

    config = SimpleNamespace(scheduler_config=SimpleNamespace(policy="priority"))
    return SimpleNamespace(
        scheduler=_AsyncScheduler(),
        vllm_config=config,
        batch_queue_size=2,
        step_fn=step_with_batch_queue,
    )


async def _hello(method: str, payload: dict[str, Any]) -> Any:
    # Over the wire and back, as the real one.
    return msgspec.msgpack.decode(msgspec.msgpack.encode(engine_hello(_core(), payload)))


async def test_the_engines_receipt_tells_what_its_scheduler_really_is() -> None:
    with anyio.fail_after(5):
        frontend, engine = await hello_receipts(_Engine(_hello), 2)
    assert (frontend.process, engine.process) == ("frontend", "engine")
    assert [name.rpartition(".")[2] for name in engine.scheduler] == [
        "_AsyncScheduler",
        "_Scheduler",
    ]
    assert (engine.batch_queue_size, engine.step, engine.policy) == (
        2,
        "step_with_batch_queue",
        "priority",
    )
    assert engine.monotonic_ns is not None


async def test_an_answer_from_a_process_without_the_layer_does_not_count_as_patched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(install, "_LAYER", install.PatchLayer())
    with anyio.fail_after(5):
        _, engine = await hello_receipts(_Engine(_hello), 2)
    assert engine.answered
    assert not engine.patched


def test_a_process_where_another_tool_took_a_hooks_place_does_not_count_as_patched(
    monkeypatch: pytest.MonkeyPatch, toy: SimpleNamespace, layer: install.PatchLayer
) -> None:
    monkeypatch.setattr(install, "_LAYER", layer)
    layer.activate(binding(hook(f"{ENGINE}:Engine.step"), hook(f"{ENGINE}:Engine.static")))
    assert frontend_hello().patched
    toy.Engine.step = len
    receipt = frontend_hello()
    assert not receipt.patched
    assert receipt.hooks == ("Engine.static",)
    assert f"hook Engine.step at {ENGINE}:Engine.step is replaced" in (receipt.problem or "")


async def test_an_engine_whose_scheduler_is_none_of_vllms_does_not_count_as_patched() -> None:
    with anyio.fail_after(5):
        _, engine = await hello_receipts(_Engine(_hello), 2)
    assert engine.answered
    assert not engine.patched
    assert "_AsyncScheduler is not derived from vllm.v1.core" in (engine.problem or "")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (_never, "did not answer nnrp_hello within 0.01 s"),
        (_refuse, "refused nnrp_hello"),
    ],
)
async def test_a_process_that_does_not_answer_is_reported_as_such(
    answer: Any, problem: str
) -> None:
    with anyio.fail_after(5):
        _, engine = await hello_receipts(_Engine(answer), 0.01)
    assert not engine.answered
    assert not engine.patched
    assert problem in (engine.problem or "")


@pytest.mark.parametrize("reply", [{"error": "broken"}, ["no", "object"], None])
async def test_an_error_that_the_method_answers_is_a_refusal(reply: Any) -> None:
    async def answer(method: str, payload: dict[str, Any]) -> Any:
        return reply

    with anyio.fail_after(5), pytest.raises(EngineRefused):
        await call_engine(_Engine(answer), "nnrp_hello", {}, wait_s=2)


async def test_the_death_of_the_engine_ends_the_call_at_once() -> None:
    engine = _Engine(_never)

    async def die() -> None:
        engine.errored = True

    engine.output_handler = asyncio.create_task(die())
    with anyio.fail_after(5), pytest.raises(EngineGone):
        await call_engine(engine, "nnrp_hello", {}, wait_s=60)


async def test_an_engine_that_is_busy_is_silent_and_not_gone() -> None:
    engine = _Engine(_never)
    engine.output_handler = alive = asyncio.create_task(_never("", {}))
    with anyio.fail_after(5), pytest.raises(EngineSilent):
        await call_engine(engine, "nnrp_hello", {}, wait_s=0.01)
    alive.cancel()


async def test_a_cancelled_caller_leaves_no_call_behind() -> None:
    ended = anyio.Event()

    async def answer(method: str, payload: dict[str, Any]) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with anyio.fail_after(5):
        with anyio.move_on_after(0.01):
            await call_engine(_Engine(answer), "nnrp_hello", {}, wait_s=60)
        await ended.wait()


def test_engines_are_remembered_as_long_as_they_live() -> None:
    engine = _Engine(_never)
    register_engine(engine, None)
    assert engine in live_engines()
    del engine
    gc.collect()
    assert [found for found in live_engines() if isinstance(found, _Engine)] == []
