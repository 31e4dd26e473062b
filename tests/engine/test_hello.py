"""Both processes of a patched vLLM say who they are."""

import logging
import os

import anyio
import pytest

from nnrp_sched_patches import install
from nnrp_sched_patches.bindings import bind_installed
from nnrp_sched_patches.hello import hello_receipts, live_engines
from nnrp_sched_patches.launch import Serving
from nnrp_sched_patches.version import installed_vllm

pytestmark = pytest.mark.anyio


async def test_the_receipts_come_from_two_patched_processes(serving: Serving) -> None:
    installed = installed_vllm()
    assert installed is not None
    frontend, engine = serving.receipts
    assert (frontend.process, engine.process) == ("frontend", "engine")
    assert frontend.pid == os.getpid()
    assert engine.pid not in (None, os.getpid())
    assert frontend.patched
    assert engine.patched
    assert (frontend.vllm, engine.vllm) == (installed.version, installed.version)
    assert "E1.hello" in engine.hooks
    assert "F1" in frontend.hooks


async def test_the_engines_receipt_tells_its_scheduler_and_a_clock_of_this_machine(
    serving: Serving,
) -> None:
    with anyio.fail_after(120):
        frontend, engine = await hello_receipts(serving.engine.async_llm, 20)
    assert "vllm.v1.core.sched.scheduler.Scheduler" in engine.scheduler
    assert engine.policy == "fcfs"
    assert engine.step in ("step", "step_with_batch_queue")
    assert frontend.monotonic_ns is not None
    assert engine.monotonic_ns is not None
    assert abs(frontend.monotonic_ns - engine.monotonic_ns) < 20e9


async def test_the_frontend_knows_its_engine(serving: Serving) -> None:
    assert serving.engine.async_llm in live_engines()


async def test_our_warnings_are_still_heard_beside_vllm(serving: Serving) -> None:
    assert logging.getLogger("nnrp_sched_patches.install").isEnabledFor(logging.WARNING)


async def test_no_hook_failed(serving: Serving) -> None:
    assert [hook for hook in install.status().hooks if hook.failures] == []


async def test_the_description_tells_model_version_and_binding(serving: Serving) -> None:
    description = serving.engine.description
    assert description.models == ("SmolLM2-135M-Instruct",)
    assert description.tool_calls
    assert description.binding == bind_installed().family.name
    assert not serving.engine_failed.is_set()
