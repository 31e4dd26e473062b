"""Tools of another host, called over a session."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched.client import Session
from nnrp_sched.engine.absent import AbsentEngine
from nnrp_sched.engine.tool_port import ToolHost
from nnrp_sched.errors import ProfileError
from nnrp_sched.profile.tools import ToolAnswer, ToolDescription
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.errors import ToolDefinitionError, ToolFailed
from nnrp_sched_orchestrator.records import ToolCall
from nnrp_sched_orchestrator.remote_tool import Lent, remote_tools
from nnrp_sched_orchestrator.subprocess_tool import ProcessSettings, subprocess_tool
from nnrp_sched_orchestrator.tool_call import ToolLimits
from nnrp_sched_orchestrator.tool_host import LocalToolHost
from nnrp_sched_orchestrator.tool_stream import ToolOutput, ToolWork
from nnrp_sched_orchestrator.tools import Tool
from tests.support.conversations import calls, conversing, says
from tests.support.processes import in_group, written
from tests.support.programs import SECONDS, program
from tests.support.serving import InMemory, scripted_server
from tests.support.tool_hosts import PlayedHost, play

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]


async def count(to: int) -> AsyncIterator[str]:
    """Count.

    Args:
        to: Where to stop.
    """
    for number in range(to):
        yield f"{number}\n"


async def fail() -> str:
    """Fail."""
    raise OSError("the disk is full")


@subprocess_tool(settings=ProcessSettings(grace_seconds=0.1))
def shell(script: str) -> list[str]:
    """Run a script."""
    return ["/bin/sh", "-c", script]


LOCAL = LocalToolHost([count, fail, shell], ToolLimits(output_bytes=1000, seconds=60))


@asynccontextmanager
async def hosting(
    host: ToolHost, limits: ServerLimits | None = None
) -> AsyncGenerator[tuple[InMemory, Session], None]:
    """A host without an engine, and a session on it."""
    async with (
        scripted_server(AbsentEngine(), limits, tool_host=host) as served,
        served.connect() as connection,
        connection.session() as session,
    ):
        yield served, session


async def test_a_remote_tool_is_called_like_a_local_one() -> None:
    async with hosting(LOCAL) as (_, session), program() as (_, agent):
        with anyio.fail_after(SECONDS):
            tools = await remote_tools(session, endpoint="unix:///tools.sock")
            stream = agent.call_tool(tools["count"], {"to": 3})
            events = [event async for event in stream]
            result = await stream.result()
    assert list(tools) == ["count", "fail", "shell"]
    assert tools["count"].description == "Count."
    properties = tools["count"].parameters["properties"]
    assert properties["to"] == {"type": "integer", "description": "Where to stop."}
    said = [event.text for event in events if isinstance(event, ToolOutput)]
    assert said == ["0\n", "1\n", "2\n"]
    assert (result.status, result.text) == ("completed", "0\n1\n2\n")
    assert result.receipt is not None
    assert result.receipt.endpoint == "unix:///tools.sock"
    assert (result.receipt.state, result.receipt.operation) == (
        "finished",
        f"{session.session_id}.2",
    )


async def test_its_failures_are_told_like_a_local_ones() -> None:
    async with hosting(LOCAL) as (_, session), program() as (_, agent):
        with anyio.fail_after(SECONDS):
            tools = await remote_tools(session)
            for name, arguments, told in [
                ("fail", {}, "OSError: the disk is full"),
                ("count", {"to": "x"}, "do not fit the parameters of count"),
                ("shell", {"script": "echo a; echo b >&2; exit 3"}, "exit code 3"),
            ]:
                stream = agent.call_tool(tools[name], arguments)
                with pytest.raises(ToolFailed, match=told):
                    await stream.result()
            answer = stream.partial.answer
    assert stream.partial.message["content"] == (
        "a\n[stderr]\nb\n[failed: it ended with exit code 3]"
    )
    assert answer is not None
    assert (answer.exit_code, answer.stderr) == (3, "b\n")


@pytest.mark.parametrize(("own", "most"), [(100, 100), (10**6, 1000)])
async def test_the_smaller_limit_counts_and_what_was_left_out_is_told(own: int, most: int) -> None:
    limits = ToolLimits(output_bytes=own)
    async with hosting(LOCAL) as (_, session), program() as (_, agent):
        with anyio.fail_after(SECONDS):
            tools = await remote_tools(session, limits=limits)
            result = await agent.call_tool(tools["count"], {"to": 1000}, limits=limits).result()
    assert len(result.text) == most
    assert result.answer is not None
    assert result.answer.output_bytes == 3890
    assert result.answer.dropped_bytes == 3890 - most


async def test_a_cancel_stops_the_tool_on_its_host_with_the_hosts_receipt(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    script = f"trap '' TERM; echo $$ >>{told}; sleep 1000 & sleep 1000"
    async with hosting(LOCAL) as (served, session), program() as (_, agent):
        with anyio.fail_after(SECONDS):
            tools = await remote_tools(session, endpoint="there")
            stream = agent.call_tool(tools["shell"], {"script": script})
            (pid,) = await written(told)
            receipt = await stream.cancel("enough")
            assert in_group(pid) == []
            assert len(served.server.tools) == 0
    assert (receipt.state, receipt.accepted, receipt.authoritative) == ("running", True, True)
    assert receipt.endpoint == "there"
    assert receipt.operation == f"{session.session_id}.2"
    assert receipt.latency_ms >= 100
    assert receipt.reason == "enough"
    assert stream.partial.message["content"] == "[cancelled: enough]"


async def test_a_host_that_has_no_proof_leaves_the_receipt_unconfirmed() -> None:
    async with hosting(PlayedHost()) as (_, session), program() as (_, agent):
        with anyio.fail_after(SECONDS):
            tools = await remote_tools(session)
            arguments = play(say=["x"], hold=True, gone=False)["arguments"]
            stream = agent.call_tool(tools["play"], arguments)
            await anext(stream)
            await anext(stream)
            receipt = await stream.cancel("enough")
    assert (receipt.accepted, receipt.authoritative) == (True, False)
    assert receipt.unconfirmed is not None
    assert "host" in receipt.unconfirmed


async def test_a_call_that_takes_too_long_is_stopped_there() -> None:
    host = PlayedHost()
    async with hosting(host) as (_, session), program() as (_, agent):
        with anyio.fail_after(SECONDS):
            tools = await remote_tools(session)
            arguments = play(say=["so far"], hold=True)["arguments"]
            limits = ToolLimits(seconds=0.5)
            stream = agent.call_tool(tools["play"], arguments, limits=limits)
            with pytest.raises(ToolFailed, match=r"0\.5 s"):
                await stream.result()
            assert (host.running, host.stops) == (0, ["cancel"])
    assert stream.partial.text == "so far"
    receipt = stream.partial.receipt
    assert receipt is not None
    assert (receipt.state, receipt.accepted, receipt.authoritative) == ("finished", False, True)


async def test_a_host_that_is_lost_fails_its_calls_and_stops_them() -> None:
    host = PlayedHost()
    async with scripted_server(AbsentEngine(), tool_host=host) as served, program() as (_, agent):
        with anyio.fail_after(SECONDS):
            carrier = served.dial()
            async with _over(carrier) as session:
                tools = await remote_tools(session)
                held = play(say=["x"], hold=True)["arguments"]
                stream = agent.call_tool(tools["play"], held)
                await host.until(lambda: host.running == 1)
                await carrier.aclose()
                with pytest.raises(ToolFailed, match="the tool host was lost"):
                    await stream.result()
                receipt = stream.partial.receipt
            await host.until(lambda: host.running == 0)
    # Nobody has told what became of the tool.
    assert receipt is not None
    assert (receipt.state, receipt.authoritative) == ("unknown", False)
    assert receipt.unconfirmed is not None


@asynccontextmanager
async def _over(carrier: Any) -> AsyncGenerator[Session, None]:
    from nnrp_sched.client.connect import over_carrier

    async with over_carrier(carrier) as connection, connection.session() as session:
        yield session


async def test_calls_of_a_run_share_the_pools_sessions_with_its_chats() -> None:
    """The server has both, the model and the tools."""
    async with program(conversing) as (stage, agent):
        server = stage.hosts[0].server
        assert server is not None
        server.tools.host = LOCAL
        connections = stage.hosts[0].connections
        with anyio.fail_after(SECONDS):
            tools = await agent.remote_tools(prefix="far-")
            made = [("far-count", f'{{"to":{number}}}') for number in range(20)]
            run = agent.run("Count.", tools, turns=[calls(*made), says("Done.")])
            result = await run.result()
        assert stage.hosts[0].connections == connections
    assert [call.text for call in result.calls] == [
        "".join(f"{at}\n" for at in range(number)) for number in range(20)
    ]
    assert {each.endpoint for each in result.tool_receipts} == {stage.hosts[0].name}
    assert len(result.tool_receipts) == 20


async def test_a_server_without_tools_is_told_apart() -> None:
    async with (
        scripted_server() as served,
        served.connect() as connection,
        connection.session() as session,
    ):
        with anyio.fail_after(SECONDS), pytest.raises(ProfileError, match="hosts no tools"):
            await remote_tools(session)


async def test_what_a_host_refuses_is_the_models_to_read() -> None:
    limits = ServerLimits(max_tool_calls=1)
    host = PlayedHost()
    async with hosting(host, limits) as (_, session), program() as (_, agent):
        with anyio.fail_after(SECONDS):
            tools = await remote_tools(session)
            held = agent.call_tool(tools["play"], play(hold=True)["arguments"])
            await host.until(lambda: host.running == 1)
            refused = agent.call_tool(tools["play"], "{}")
            with pytest.raises(ToolFailed, match="1 tool calls at once"):
                await refused.result()
            await held.cancel()


async def test_names_that_models_cannot_use_are_refused() -> None:
    class Odd(PlayedHost):
        def __init__(self) -> None:
            super().__init__()
            self.tools = (ToolDescription("x" * 60, "", {}), ToolDescription("y", "", {}))

    async with hosting(Odd()) as (_, session):
        with anyio.fail_after(SECONDS):
            assert len(await remote_tools(session)) == 2
            with pytest.raises(ToolDefinitionError, match="name="):
                await remote_tools(session, prefix="a-host-")


async def test_a_session_can_be_borrowed_for_each_call() -> None:
    lent: list[str] = []
    async with scripted_server(AbsentEngine(), tool_host=LOCAL) as served:

        @asynccontextmanager
        async def borrow() -> AsyncGenerator[Lent, None]:
            lent.append("out")
            async with served.connect() as connection, connection.session() as session:
                yield Lent(session, f"call {len(lent)}")
            lent.append("back")

        async with program() as (_, agent):
            with anyio.fail_after(SECONDS):
                tools = await remote_tools(borrow)
                result = await agent.call_tool(tools["count"], {"to": 1}).result()
    assert lent == ["out", "back"] * 2
    assert result.text == "0\n"
    assert result.receipt is not None
    assert result.receipt.endpoint == "call 3"


async def test_an_answer_of_a_strange_form_is_a_failure() -> None:
    class Strange(PlayedHost):
        def call(self, asked: Any) -> Any:
            played = super().call(asked)

            class Call:
                stop = played.stop

                async def run(self, emit: Any) -> Any:
                    await played.run(emit)
                    return {"status": "so so"}

            return Call()

    async with hosting(Strange()) as (_, session):
        with anyio.fail_after(SECONDS):
            tool = (await remote_tools(session))["play"]
            answer = await _answer(tool)
    assert answer.status == "failed"
    assert "unknown form" in answer.message


async def _answer(tool: Tool) -> ToolAnswer:
    work = ToolWork("s", tool, ToolCall(0, "c", tool.name, "{}"))

    async def emit(_event: object) -> None: ...

    with pytest.raises(ToolFailed):
        await work.run(emit)
    answer = work.partial("failed", None).answer
    assert answer is not None
    return answer
