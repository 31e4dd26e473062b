"""A vLLM that nobody asked to patch: it serves, and knows nothing of the layer. Then it dies."""

import os
import signal
from collections.abc import AsyncIterator

import anyio
import pytest

from nnrp_sched.engine.port import ChatCall
from nnrp_sched.errors import BackendError
from nnrp_sched.profile.events import Diagnostics
from nnrp_sched.wire import CapabilityToken, ProgressStage
from nnrp_sched_patches import install
from nnrp_sched_patches.channel import EngineGone, call_engine
from nnrp_sched_patches.hello import hello_receipts
from nnrp_sched_patches.launch import LaunchOptions, Serving, launch
from tests.support.raw_peer import RawPeer
from tests.support.serving import scripted_server

pytestmark = pytest.mark.anyio

BODY = {
    "model": "SmolLM2-135M-Instruct",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 20,
}


@pytest.fixture(scope="module")
async def unpatched(anyio_backend: str) -> AsyncIterator[Serving]:
    """A vLLM without patches and without HTTP."""
    async with launch(LaunchOptions()) as running:
        yield running


async def test_it_serves_and_claims_no_binding(unpatched: Serving) -> None:
    with anyio.fail_after(120):
        answer = await unpatched.engine.complete(ChatCall("one", BODY))
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert (unpatched.http, unpatched.receipts) == (None, ())
    assert unpatched.engine.description.binding is None
    assert not install.status().active


async def test_nothing_is_told_of_its_queue_because_nobody_knows(unpatched: Serving) -> None:
    async with scripted_server(unpatched.engine) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        await peer.send(peer.wire.negotiate(session_id, [CapabilityToken.PROGRESS_PARTIAL]))
        chat = {**BODY, "stream": True}
        with anyio.fail_after(120):
            frame_id = await peer.submit(session_id, chat, diagnostics=True)
            events, _ = await peer.result(frame_id)
    assert peer.stages(frame_id) == [ProgressStage.INPUT_RECEIVED, ProgressStage.PRODUCING_PARTIAL]
    told = events[-1]
    assert isinstance(told, Diagnostics)
    assert told.diagnostics["terminal_outcome"] == "completed"
    assert told.diagnostics["queue_delay_ms"] is None
    assert told.diagnostics["prefill_latency_ms"] is None


async def test_its_engine_process_does_not_answer_the_hello(unpatched: Serving) -> None:
    with anyio.fail_after(120):
        frontend, engine = await hello_receipts(unpatched.engine.async_llm, 20)
    assert not frontend.patched
    assert not engine.answered
    assert "nnrp_hello" in (engine.problem or "")


async def test_the_death_of_its_engine_process_reaches_everybody_who_waits(
    unpatched: Serving,
) -> None:
    llm = unpatched.engine.async_llm
    endless = {**BODY, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    stream = unpatched.engine.stream(ChatCall("victim", endless))
    with anyio.fail_after(120):
        await anext(stream)
        for process in llm.engine_core.resources.engine_manager.processes:
            os.kill(process.pid, signal.SIGKILL)
    with anyio.fail_after(10):
        with pytest.raises(BackendError) as failure:
            async for _ in stream:
                pass
        assert failure.value.status == 500
        await unpatched.engine_failed.wait()
        with pytest.raises(EngineGone):
            await call_engine(llm, "nnrp_hello", {}, wait_s=60)
        with pytest.raises(BackendError):
            await unpatched.engine.complete(ChatCall("late", BODY))
    assert unpatched.engine.calls_in_flight == 0
