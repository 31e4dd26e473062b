"""The tool loop on a real vLLM: it takes our transcripts, and is idle when a run is cancelled.

A `choice` of one text makes the small model write the calls.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched.profile import Completed
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.agent_run import RunSettings
from nnrp_sched_orchestrator.errors import TurnsExceeded
from nnrp_sched_orchestrator.orchestrator import Orchestrator
from nnrp_sched_orchestrator.run_records import RunEvent
from nnrp_sched_orchestrator.subprocess_tool import ProcessSettings, subprocess_tool
from nnrp_sched_orchestrator.tool_stream import ToolOutput, ToolStarted
from nnrp_sched_patches.launch import Serving
from tests.support.processes import in_group, written
from tests.support.serving import scripted_server
from tests.support.vllm_chats import MODEL

pytestmark = pytest.mark.anyio

SECONDS = 120


def says(text: str) -> dict[str, Any]:
    """Members of a chat body that is answered with this text."""
    forced = {"choice": [text]}
    return {"structured_outputs": forced, "max_tokens": 300, "temperature": 0, "model": MODEL}


def calling(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


async def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


@subprocess_tool(settings=ProcessSettings(grace_seconds=0.1))
def run_script(path: str) -> list[str]:
    """Run a script."""
    return ["/bin/sh", path]


@asynccontextmanager
async def agent_on(serving: Serving) -> AsyncGenerator[Agent, None]:
    """An agent on a server over the engine."""
    async with (
        scripted_server(serving.engine) as served,
        Orchestrator.connect(["engine"], connect=lambda _name: served.connect()) as orchestrator,
        orchestrator.program("tools") as agent,
    ):
        yield agent


async def test_tools_start_while_the_model_writes_and_vllm_takes_the_transcript_back(
    serving: Serving,
) -> None:
    oslo, rome = (calling("get_weather", f'{{"city": "{city}"}}') for city in ("Oslo", "Rome"))
    async with agent_on(serving) as agent:
        with anyio.fail_after(SECONDS):
            run = agent.run(
                "Weather?",
                [get_weather, run_script],
                settings=RunSettings(max_turns=2),
                **says(f"Well. {oslo}{rome}"),
            )
            events: list[RunEvent] = []
            with pytest.raises(TurnsExceeded):
                async for event in run:
                    events.append(event)  # noqa: PERF401  # It ends by raising.
    result = run.partial
    # The model can say nothing else, so it calls again: vLLM has read the first calls' answers.
    assert result.turns == 2
    assert [call.text for call in result.calls] == ["It rains in Oslo.", "It rains in Rome."] * 2
    roles = [message["role"] for message in result.messages]
    assert roles == ["user", *["assistant", "tool", "tool"] * 2]
    first = next(at for at, event in enumerate(events) if isinstance(event, ToolStarted))
    assert first < next(at for at, event in enumerate(events) if isinstance(event, Completed))
    assert result.usage is not None
    assert result.usage["prompt_tokens"] > 0


async def test_a_cancelled_run_leaves_no_process_and_an_idle_engine(
    serving: Serving, tmp_path: Path
) -> None:
    told, script = tmp_path / "pids", tmp_path / "script"
    script.write_text(f"trap '' TERM\necho $$ >>{told}\necho started\nsleep 1000 & sleep 1000\n")
    call = calling("run_script", f'{{"path": "{script}"}}')
    words = " ".join("and so on" for _ in range(60))
    async with agent_on(serving) as agent:
        with anyio.fail_after(SECONDS):
            run = agent.run("Go.", [run_script], **says(f"{call} {words}"))
            async for event in run:
                if isinstance(event, ToolOutput):
                    break
            receipt = await run.cancel("enough")
            (pid,) = await written(told)
            assert in_group(pid) == []
            assert (await serving.engine.queue()).operations == ()
            result = await run.result()
    assert (receipt.accepted, receipt.authoritative) == (True, True)
    assert result.status == "cancelled"
    assert result.messages[-1]["role"] == "tool"
    assert "[cancelled: " in result.messages[-1]["content"]
