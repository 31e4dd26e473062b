"""A tool call as a stream of an agent."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from nnrp_sched_orchestrator.errors import StreamCancelled, ToolFailed
from nnrp_sched_orchestrator.subprocess_tool import ProcessSettings, subprocess_tool
from nnrp_sched_orchestrator.tool_call import ToolLimits
from nnrp_sched_orchestrator.tool_stream import ToolFinished, ToolOutput, ToolStarted
from tests.support.processes import in_group, written
from tests.support.programs import SECONDS, program

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]


async def count(to: int) -> AsyncIterator[str]:
    """Count."""
    for number in range(to):
        yield f"{number}\n"


async def fail() -> str:
    """Fail."""
    raise OSError("the disk is full")


async def wait() -> AsyncIterator[str]:
    """Say something, and never end."""
    yield "so far"
    await anyio.sleep_forever()


def shell(script: str) -> list[str]:
    """Run a script."""
    return ["/bin/sh", "-c", script]


SHELL = subprocess_tool(settings=ProcessSettings(grace_seconds=0.1))(shell)


async def test_a_call_tells_its_start_its_output_and_its_end() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.call_tool(count, {"to": 3})
            started, *outputs, finished = [event async for event in stream]
            result = await stream.result()
    assert isinstance(started, ToolStarted)
    assert (started.name, started.arguments) == ("count", '{"to":3}')
    assert outputs == [ToolOutput(started.call_id, f"{number}\n") for number in range(3)]
    assert finished == ToolFinished(started.call_id, result)
    assert (result.status, result.text) == ("completed", "0\n1\n2\n")
    assert result.message == {
        "role": "tool",
        "tool_call_id": started.call_id,
        "content": "0\n1\n2\n",
    }
    assert result.receipt is not None
    assert (result.receipt.stream_id, result.receipt.accepted) == (stream.id, False)
    assert result.timings.submitted is not None
    assert result.timings.first_event is not None
    assert result.timings.finished is not None


async def test_a_tool_that_fails_raises_and_leaves_a_message_for_the_model() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.call_tool(fail)
            with pytest.raises(ToolFailed, match="the disk is full"):
                await stream.result()
            result = stream.partial
    assert result.status == "failed"
    assert result.message["content"] == "[failed: OSError: the disk is full]"
    assert isinstance(result.error, ToolFailed)
    assert stream.receipt is not None
    assert (stream.receipt.state, stream.receipt.accepted) == ("finished", False)


async def test_a_program_that_fails_shows_the_model_all_it_needs() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.call_tool(SHELL, {"script": "echo out; echo no such file >&2; exit 2"})
            with pytest.raises(ToolFailed):
                await stream.text()
            content = stream.partial.message["content"]
    assert content == "out\n[stderr]\nno such file\n[failed: it ended with exit code 2]"


async def test_a_truncated_output_says_so_and_is_otherwise_whole() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.call_tool(count, {"to": 10}, limits=ToolLimits(output_bytes=7))
            result = await stream.result()
    assert result.text == "0\n1\n2\n3"
    assert result.message["content"] == "0\n1\n2\n3\n[truncated: 13 of 20 bytes were left out]"
    assert result.answer is not None
    assert (result.answer.output_bytes, result.answer.dropped_bytes) == (20, 13)


async def test_a_call_that_is_cancelled_keeps_its_output_and_says_why_it_ended() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.call_tool(wait)
            async for event in stream:
                if isinstance(event, ToolOutput):
                    break
            receipt = await stream.cancel("somebody else found it")
            result = await stream.result()
            with pytest.raises(StreamCancelled):
                await stream.text()
    assert (receipt.state, receipt.accepted, receipt.authoritative) == ("local", True, True)
    assert (result.status, result.text) == ("cancelled", "so far")
    assert result.message["content"] == "so far\n[cancelled: somebody else found it]"
    assert result.receipt == receipt


async def test_leaving_a_program_ends_its_processes_with_proof(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    script = f"trap '' TERM; echo $$ >>{told}; sleep 1000 & sleep 1000"
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            async with agent.call_tool(SHELL, {"script": script}) as stream:
                (pid,) = await written(told)
            assert in_group(pid) == []
    assert stream.receipt is not None
    assert (stream.receipt.accepted, stream.receipt.authoritative) == (True, True)
    assert stream.receipt.latency_ms >= 100
    assert stream.partial.status == "cancelled"


async def test_the_cone_of_an_agent_has_its_tools_in_it(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    async with program() as (_, root):
        with anyio.fail_after(SECONDS):
            async with root.agent("child") as child:
                streams = [
                    child.call_tool(SHELL, {"script": f"echo $$ >>{told}; sleep 1000"}),
                    child.call_tool(wait),
                ]
                (pid,) = await written(told)
                report = await root.cancel("enough")
                assert in_group(pid) == []
    assert sorted(each.stream_id for each in report.receipts) == sorted(s.id for s in streams)
    assert report.unconfirmed == ()
    assert all(each.accepted for each in report.receipts)


async def test_a_tool_that_has_ended_is_not_cancelled() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.call_tool(count, {"to": 1})
            await stream.result()
            receipt = await stream.cancel("late")
    assert (receipt.state, receipt.accepted) == ("finished", False)
    assert stream.partial.status == "completed"
