"""A coding agent that sends explorers through this repository, and stops whom it does not need."""

import textwrap
from pathlib import Path
from typing import Any, Final, Literal

import anyio

from examples.serving import run
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.agent_run import RunSettings
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.errors import BudgetExceeded
from nnrp_sched_orchestrator.orchestrator import Orchestrator
from nnrp_sched_orchestrator.subprocess_tool import subprocess_tool
from nnrp_sched_orchestrator.tool_stream import ToolFinished, ToolOutput
from nnrp_sched_orchestrator.tools import function_tool

ROOT: Final = Path(__file__).parents[2]
File = Literal["README.md", "nnrp_sched/errors.py", "nnrp_sched/client/chat.py"]
QUESTIONS: Final = {
    "reader": "Read README.md: what is this project?",
    "finder": "Find the classes in nnrp_sched/errors.py: which errors are there?",
}
LONG: Final[dict[str, Any]] = {"max_tokens": 600, "ignore_eos": True}


async def read_file(path: File) -> str:
    """Read the beginning of a file."""
    return (await anyio.Path(ROOT / path).read_text())[:600]


@subprocess_tool(strict=True)
def grep(word: Literal["class", "def", "raise"], path: File) -> list[str]:
    """Find the lines of a file that have a word."""
    return ["grep", "-n", "-m", "10", "--", word, str(ROOT / path)]


@subprocess_tool
def follow(path: File) -> list[str]:
    """Show the end of a file, and what is added to it from now on."""
    return ["tail", "-n", "1", "-f", "--", str(ROOT / path)]


async def story(endpoint: str) -> None:
    """Two explorers, one who talks too much, and one who is called back."""
    found: dict[str, str] = {}
    async with (
        Orchestrator.connect(endpoint, sessions=2) as orchestrator,
        orchestrator.program("fix-bug-42", budget=Budget(tokens=3000, seconds=240)) as program,
    ):
        async with anyio.create_task_group() as tasks:
            for name in QUESTIONS:
                tasks.start_soon(explore, program, name, found)
            tasks.start_soon(talk_too_much, program)
            tasks.start_soon(be_called_back, program)
        notes = " ".join(found[name] for name in QUESTIONS)
        summary = await program.chat(f"Say in one sentence: {notes}", max_tokens=40).text()
        print(f"The lead sums up: {line(summary)}")
        for path, spent in program.spent_below().items():
            print(f"  {path}: {spent.tokens} tokens in {spent.model_calls} calls")


async def explore(program: Agent, name: str, found: dict[str, str]) -> None:
    """A subagent: the model calls a tool, reads what it gave, and answers."""
    async with program.agent(name, budget=Budget(tokens=400)) as agent:
        run = agent.run(
            QUESTIONS[name],
            [function_tool(read_file, strict=True), grep],
            settings=RunSettings(max_turns=3),
            tool_choice="required",  # A model of 135M parameters calls no tool by itself.
            max_tokens=90,
            temperature=0,
        )
        async for event in run:
            if isinstance(event, ToolFinished):
                call = event.result.call
                print(f"{agent.path} called {call.name}({line(call.arguments)})")
        found[name] = line((await run.result()).text)
        print(f"{agent.path} says: {found[name]}")


async def talk_too_much(program: Agent) -> None:
    """A subagent whose budget is over in the middle of its answer."""
    async with program.agent("talker", budget=Budget(tokens=48)) as agent:
        try:
            await agent.chat("Give a long answer: what is a program?", **LONG).result()
        except BudgetExceeded as error:
            kept = 0 if error.partial is None else len(error.partial.text.split())
            print(f"{error}; {kept} words of it are kept")


async def be_called_back(program: Agent) -> None:
    """A subagent that is cancelled with its model call and its tool's process."""
    async with program.agent("wanderer") as agent:
        watching = agent.call_tool(follow, {"path": "README.md"})
        async for told in watching:
            if isinstance(told, ToolOutput):
                break
        answer = agent.chat("Give a long answer: where do programs come from?", **LONG)
        pieces = 0
        async for _ in answer:
            pieces += 1
            if pieces == 20:
                break
        report = await agent.cancel("the others have found it")
        for receipt in report.receipts:
            tokens = "" if receipt.tokens is None else f", {receipt.tokens} of 600 tokens made"
            print(
                f"{receipt.stream_id} was {receipt.state}: stopped after {receipt.latency_ms:.0f} "
                f"ms, confirmed: {receipt.authoritative}{tokens}"
            )


def line(text: str) -> str:
    """The beginning of a text, in one line."""
    return textwrap.shorten(text, 90, placeholder=" …")


if __name__ == "__main__":
    run(story, __doc__)
