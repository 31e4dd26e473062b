"""Twelve subagents, forty tool calls, two sessions, on the real engine: to the end, and cut."""

import logging
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched.transport import background_tasks
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.orchestrator import Orchestrator
from nnrp_sched_orchestrator.pool_records import PoolSettings
from nnrp_sched_orchestrator.records import CancellationReport, ModelResult
from nnrp_sched_orchestrator.stream import Stream
from nnrp_sched_orchestrator.subprocess_tool import ProcessSettings, subprocess_tool
from nnrp_sched_orchestrator.tool_stream import ToolResult
from nnrp_sched_orchestrator.tools import Tool
from nnrp_sched_patches.launch import Serving
from tests.support.processes import with_variable
from tests.support.serving import scripted_server
from tests.support.vllm_chats import body

pytestmark = pytest.mark.anyio

logger = logging.getLogger(__name__)

SECONDS = 240
AGENTS = 12
TOOL_CALLS = 40
AT_ONCE = 18
"""Model calls that leave the pool. The engine runs eight of them, so ten wait there."""
VARIABLE = "NNRP_TEST_ORCHESTRATOR"
ALLOWANCE_MS = 50.0
STEPS = 12
"""How many of them are measured."""
PROCESSES = 2
"""Of each tool: a shell, and what it has started."""


class Programs:
    """A tool whose processes can be told from all others."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        environment = {**os.environ, VARIABLE: self._mark}
        settings = ProcessSettings(environment=environment, grace_seconds=0.5)

        @subprocess_tool(settings=settings)
        def shell(script: str) -> list[str]:
            """Run a script."""
            return ["/bin/sh", "-c", script]

        self.shell: Tool = shell

    @property
    def living(self) -> list[int]:
        """The processes that there are."""
        return with_variable(f"{VARIABLE}={self._mark}")


@asynccontextmanager
async def program_on(serving: Serving) -> AsyncGenerator[Agent, None]:
    """A program over two sessions of a server over the engine."""
    async with (
        scripted_server(serving.engine) as served,
        Orchestrator.connect(
            ["engine"],
            sessions=2,
            pool_settings=PoolSettings(max_in_flight=AT_ONCE),
            connect=lambda _name: served.connect(),
        ) as orchestrator,
        orchestrator.program("coders") as program,
    ):
        yield program


def share(number: int) -> int:
    """How many of the forty tool calls are this agent's."""
    return len(range(number, TOOL_CALLS, AGENTS))


async def test_twelve_subagents_and_forty_tool_calls_over_two_sessions_finish(
    serving: Serving,
) -> None:
    programs = Programs()
    answers: list[ModelResult] = []
    outputs: list[ToolResult] = []

    async def work(program: Agent, number: int) -> None:
        async with program.agent(f"coder-{number}") as agent:
            tools = [
                agent.call_tool(programs.shell, {"script": f"echo {number}; sleep 0.1; echo done"})
                for _ in range(share(number))
            ]
            for question in ("What is a file?", "What is a line?"):
                chat = body(question, max_tokens=8 + number % 4, ignore_eos=True)
                answers.append(await agent.chat(chat).result())
            outputs.extend([await tool.result() for tool in tools])

    with anyio.fail_after(SECONDS):
        async with program_on(serving) as program:
            async with anyio.create_task_group() as tasks:
                for number in range(AGENTS):
                    tasks.start_soon(work, program, number)
            spent = program.spent
        snapshot = await serving.engine.queue()
    assert [result.status for result in answers] == ["completed"] * 2 * AGENTS
    assert spent.model_calls == 2 * AGENTS
    assert spent.tokens == sum(2 * (8 + number % 4) for number in range(AGENTS))
    assert len(outputs) == TOOL_CALLS
    assert {result.text.split()[-1] for result in outputs} == {"done"}
    assert snapshot.operations == ()
    assert programs.living == []


def kept_waiting_ms() -> float:
    """How long this thread was ready to run, and others had the CPU (Documentation/scheduler/
    sched-stats.rst of Linux): what a busy machine adds to every time."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e6


class Watch:
    """Looks at the engine's queue again and again, at each boundary between two steps."""

    def __init__(self, serving: Serving) -> None:
        self._core = serving.engine.async_llm.engine_core
        self.looks: list[tuple[float, int, int]] = []
        """When the engine said it, in ms of the machine's monotonic clock; how many ran, waited."""
        self.starved = 0.0
        """What `kept_waiting_ms` was at the last look."""
        self._news = anyio.Event()

    async def run(self) -> None:
        """Look until the engine has been busy and is idle."""
        while not self.idle:
            told = await self._core.call_utility_async("nnrp_queue", {})
            at = told["mono_ns"] / 1e6
            self.looks.append((at, told["running"], told["waiting"] + told["blocked"]))
            self.starved = kept_waiting_ms()
            self._news.set()
            self._news = anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until this is so, looking at it whenever the engine was looked at."""
        while not condition():
            await self._news.wait()

    @property
    def idle(self) -> bool:
        """Whether it has been busy, and is no more."""
        return any(look[1:] == (8, AT_ONCE - 8) for look in self.looks) and not any(
            self.looks[-1][1:]
        )

    @property
    def steps(self) -> list[float]:
        """How long each step took with all that is to run and wait, in ms."""
        steady = [at for at, *counts in self.looks if counts == [8, AT_ONCE - 8]]
        return [later - earlier for earlier, later in pairwise(steady)]


async def test_cancelled_in_the_middle_everything_ends_with_proof_and_the_engine_is_idle_at_once(
    serving: Serving,
) -> None:
    programs = Programs()
    streams: list[Stream[Any, Any]] = []

    async def work(program: Agent, number: int) -> None:
        async with program.agent(f"coder-{number}") as agent:
            tools = [
                agent.call_tool(programs.shell, {"script": "sleep 1000 & echo on; wait"})
                for _ in range(share(number))
            ]
            chat = body("Count.", max_tokens=1500, ignore_eos=True)
            chats = [agent.chat(chat) for _ in range(2)]
            streams.extend([*tools, *chats])
            await anyio.sleep_forever()

    watch = Watch(serving)
    with anyio.fail_after(SECONDS):
        async with program_on(serving) as program, background_tasks() as tasks:
            for number in range(AGENTS):
                tasks.start_soon(work, program, number)
            tasks.start_soon(watch.run)
            await watch.until(
                lambda: sum(each.partial.text == "on\n" for each in streams) == TOOL_CALLS
            )
            assert len(programs.living) == PROCESSES * TOOL_CALLS
            await watch.until(lambda: len(watch.steps) >= STEPS)
            steps = watch.steps[-STEPS:]
            starved, began = kept_waiting_ms(), time.monotonic() * 1000
            report = await program.cancel("enough")
            left = programs.living
            await watch.until(lambda: watch.idle)
    took, starved = watch.looks[-1][0] - began, watch.starved - starved
    told = (
        f"idle {took:.0f} ms after the cancel, for {starved:.0f} of which others had the CPU; "
        f"{len(steps)} steps before it took {min(steps):.0f} to {max(steps):.0f} ms; "
        f"{len(report.receipts)} receipts after {report.seconds * 1000:.0f} ms"
    )
    logger.info(told)
    assert left == [], told
    _check(report)
    assert len(streams) == len(report.receipts), told
    assert took - starved <= max(steps) + ALLOWANCE_MS, told


def _check(report: CancellationReport) -> None:
    """Each operation has an authoritative receipt that says where it was."""
    assert report.unconfirmed == ()
    receipts = report.receipts
    assert all(receipt.accepted for receipt in receipts)
    by_state = {
        state: sum(receipt.state == state for receipt in receipts)
        for state in ("local", "running", "waiting", "queued")
    }
    assert by_state == {
        "local": TOOL_CALLS,
        "running": 8,
        "waiting": AT_ONCE - 8,
        "queued": 2 * AGENTS - AT_ONCE,
    }
    assert len({receipt.operation for receipt in receipts if receipt.operation}) == AT_ONCE
