"""Tools that stream beside the model: a function here, a program, and one on another host."""

import tempfile
import textwrap
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import anyio

from examples.serving import run
from nnrp_sched.cli.child import started_server
from nnrp_sched.client import connect
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.agent_run import RunSettings
from nnrp_sched_orchestrator.orchestrator import Orchestrator
from nnrp_sched_orchestrator.remote_tool import remote_tools
from nnrp_sched_orchestrator.stream import Stream
from nnrp_sched_orchestrator.subprocess_tool import subprocess_tool
from nnrp_sched_orchestrator.tool_stream import ToolEvent, ToolFinished, ToolOutput, ToolResult
from nnrp_sched_orchestrator.tools import Tool, function_tool

ROOT: Final = Path(__file__).parents[2]
File = Literal["README.md", "Makefile", "LICENSE"]


async def headings(path: File) -> AsyncIterator[str]:
    """The headings of a file, as they are found."""
    async with await anyio.open_file(ROOT / path) as text:
        async for line in text:
            if line.startswith("#"):
                yield line


@subprocess_tool(strict=True)
def grep(word: Literal["agent", "vLLM", "session"], path: File) -> list[str]:
    """Find the lines of a file that have a word."""
    return ["grep", "-n", "-m", "5", "--", word, str(ROOT / path)]


@subprocess_tool
def watch(path: File) -> list[str]:
    """Show the end of a file, and what is added to it from now on."""
    return ["tail", "-n", "1", "-f", "--", str(ROOT / path)]


LOCAL: Final = function_tool(headings, strict=True)


@asynccontextmanager
async def host() -> AsyncGenerator[dict[str, Tool], None]:
    """The tools of another process, which `nnrp-sched tool-host` serves at a unix socket."""
    with tempfile.TemporaryDirectory() as folder:
        module = "examples.tool_streams.host_tools:TOOLS"
        listen = ("--listen", f"unix://{folder}/tools.sock")
        async with (
            started_server("tool-host", module, *listen) as server,
            connect(server.ready["endpoints"][0]) as connection,
            connection.session() as session,
        ):
            yield await remote_tools(session, endpoint="tool-host")


async def story(endpoint: str) -> None:
    """Three kinds of tools: each streams, one is chosen by the model, all can be stopped."""
    async with (
        host() as elsewhere,
        Orchestrator.connect(endpoint, sessions=2) as orchestrator,
        orchestrator.program("tools") as program,
    ):
        await all_at_once(program, elsewhere)
        await by_the_model(program)
        await stopped(program, elsewhere)


async def all_at_once(program: Agent, elsewhere: Mapping[str, Tool]) -> None:
    """A model call and three tools, in one ordered stream of events."""
    async with program.agent("reader") as agent:
        events = agent.events()
        streams: dict[str, Stream[Any, Any]] = {
            "model": agent.chat("What is a file?", max_tokens=16, temperature=0),
            "headings": agent.call_tool(LOCAL, {"path": "README.md"}),
            "grep": agent.call_tool(grep, {"word": "agent", "path": "README.md"}),
            "count_lines": agent.call_tool(elsewhere["count_lines"], {"folder": "nnrp_sched"}),
        }
    names = {stream.id: name for name, stream in streams.items()}
    counted = dict.fromkeys(streams, 0)
    last = 0
    async for told in events:
        assert told.sequence == last + 1
        last = told.sequence
        counted[names[told.stream_id]] += 1
    print(f"{last} events in one order: {counted}")


async def by_the_model(program: Agent) -> None:
    """The model calls a tool, because it is made to: it is a small one."""
    async with program.agent("asker") as agent:
        run = agent.run(
            "Read README.md: which headings are there?",
            [grep, LOCAL],
            settings=RunSettings(max_turns=3),
            tool_choice="required",
            max_tokens=60,
            temperature=0,
        )
        async for event in run:
            if isinstance(event, ToolFinished):
                call, text = event.result.call, event.result.text
                count = len(text.splitlines())
                print(f"The model called {call.name}({one_line(call.arguments)}): {count} lines")
        print(f"It says: {one_line((await run.result()).text)}")


async def stopped(program: Agent, elsewhere: Mapping[str, Tool]) -> None:
    """Tools that would go on for ever end with their agent, wherever they run."""
    async with program.agent("watcher") as agent:
        here = agent.call_tool(watch, {"path": "LICENSE"})
        there = agent.call_tool(elsewhere["remote_watch"], {"path": "LICENSE"})
        for stream in (here, there):
            await first_output(stream)
        report = await agent.cancel("seen enough")
    for receipt in report.receipts:
        where = receipt.endpoint or "here"
        print(
            f"Stopped {where} after {receipt.latency_ms:.0f} ms; "
            f"no process of it is left: {receipt.authoritative}"
        )


async def first_output(stream: Stream[ToolEvent, ToolResult]) -> Any:
    """Wait until a tool says something."""
    async for event in stream:
        if isinstance(event, ToolOutput):
            return event.text


def one_line(text: str) -> str:
    """The beginning of a text, in one line."""
    return textwrap.shorten(text, 80, placeholder=" …")


if __name__ == "__main__":
    run(story, __doc__)
