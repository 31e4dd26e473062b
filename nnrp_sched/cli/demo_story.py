"""The program that `nnrp-sched demo` runs: a few agents over this project's own files."""

import textwrap
from collections import Counter
from pathlib import Path
from typing import Any, Final, Literal

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

import nnrp_sched
from nnrp_sched.cli.demo_board import Audience
from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.agent_events import AgentEvents
from nnrp_sched_orchestrator.agent_run import RunSettings
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.errors import BudgetExceeded
from nnrp_sched_orchestrator.fanout import race
from nnrp_sched_orchestrator.fanout_report import FanOut, FanOutReport, Tally
from nnrp_sched_orchestrator.records import ModelResult, Receipt
from nnrp_sched_orchestrator.subprocess_tool import subprocess_tool
from nnrp_sched_orchestrator.tool_stream import ToolFinished, ToolOutput, ToolStarted
from nnrp_sched_orchestrator.tools import function_tool

_ROOT: Final = Path(nnrp_sched.__file__).parent
_EXCERPT: Final = 500
"""Characters that the small model gets to read of a file."""
_MIDDLE: Final = 24
"""Pieces of text after which an agent is cancelled."""
_LONG: Final = 400
"""Output tokens that the calls which are to be cut may make."""
_SHARE: Final = 40
"""The token budget that is too small."""

QUESTION: Final = "What is the capital of France?"
EXPLORERS: Final = {
    "errors": "Which errors does errors.py define?",
    "client": "What is a chat? See client/chat.py.",
    "server": "What does server/admission.py admit?",
}
_SYSTEM: Final = {"role": "system", "content": "You read Python files. Answer in one sentence."}

File = Literal["errors.py", "client/chat.py", "server/admission.py", "wire/client_session.py"]


async def read_file(path: File) -> str:
    """Read the beginning of a file of the project."""
    return (await anyio.Path(_ROOT / path).read_text())[:_EXCERPT]


@subprocess_tool(strict=True)
def grep(word: Literal["class", "def", "raise", "cancel"], path: File) -> list[str]:
    """Find the lines of a file of the project that have a word."""
    return ["grep", "-n", "-m", "8", "--", word, str(_ROOT / path)]


@subprocess_tool
def follow(path: File) -> list[str]:
    """Show the end of a file, and whatever is added to it from now on."""
    return ["tail", "-n", "2", "-f", "--", str(_ROOT / path)]


TOOLS: Final = (function_tool(read_file, strict=True), grep)


class Story:
    """The agents at work, and what came of them."""

    def __init__(self, program: Agent, audience: Audience, model: str | None = None) -> None:
        self.program = program
        self.agents = [program]
        self.events: Counter[str] = Counter()
        """Events of model calls, by type."""
        self.tool_calls = 0
        self.answers: dict[str, str] = {}
        self.over_budget: BudgetExceeded | None = None
        self.cancelled: tuple[Receipt, ...] = ()
        self.raced: FanOut[ModelResult] | None = None
        self._audience = audience
        self._tally = Tally()
        self._how: dict[str, Any] = {"model": model, "temperature": 0}

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Of every stream that did not complete."""
        return tuple(receipt for agent in self.agents for receipt in agent.receipts)

    @property
    def saved(self) -> tuple[FanOutReport, ...]:
        """What cancelling saved: of the race, and of the cone."""
        told = () if self.raced is None else (self.raced.report,)
        return (*told, self._tally.report((), 0.0))

    async def play(self) -> None:
        """Let all of them work at once."""
        async with anyio.create_task_group() as tasks:
            for name, question in EXPLORERS.items():
                tasks.start_soon(self._explore, name, question, tasks)
            tasks.start_soon(self._overspend, tasks)
            tasks.start_soon(self._be_cancelled, tasks)
            tasks.start_soon(self._race, tasks)

    # --- the agents -----------------------------------------------------------------------------

    async def _explore(self, name: str, question: str, tasks: TaskGroup) -> None:
        """Ask; the model picks a tool, reads what that gave, and answers."""
        async with self.program.agent(name, budget=Budget(tokens=400)) as agent:
            self._watch(agent, tasks)
            messages = [_SYSTEM, {"role": "user", "content": question}]
            run = agent.run(
                messages,
                TOOLS,
                name="explore",
                settings=RunSettings(max_turns=3),
                tool_choice="required",  # A model of this size calls no tool by itself.
                max_tokens=90,
                **self._how,
            )
            try:
                self.answers[name] = _flat(await run.text())
            except NnrpSchedError as error:
                self._tell(agent, str(error))
            else:
                self._tell(agent, f"answers: {self.answers[name]}")

    async def _overspend(self, tasks: TaskGroup) -> None:
        """Want more tokens than there are."""
        async with self.program.agent("novelist", budget=Budget(tokens=_SHARE)) as agent:
            self._watch(agent, tasks)
            asked = "Give a long answer: the story of a lighthouse."
            stream = agent.chat(asked, max_tokens=_LONG, ignore_eos=True, **self._how)
            try:
                await stream.result()
            except BudgetExceeded as error:
                self.over_budget = error
                self._tell(agent, str(error))
            self._tally.ended(stream.partial, stream.receipt)

    async def _be_cancelled(self, tasks: TaskGroup) -> None:
        """Work with somebody below; all of it is cancelled in the middle of an answer."""
        async with (
            self.program.agent("archivist") as agent,
            agent.agent("clerk") as clerk,
        ):
            self._watch(agent, tasks)
            self._watch(clerk, tasks)
            asked = "Give a long answer: how are files archived?"
            streams = [
                each.chat(asked, max_tokens=_LONG, ignore_eos=True, **self._how)
                for each in (agent, clerk)
            ]
            shown = clerk.call_tool(follow, {"path": "errors.py"})
            async for event in shown:
                if isinstance(event, ToolOutput):
                    break
            pieces = 0
            async for _ in streams[0]:
                pieces += 1
                if pieces == _MIDDLE:
                    break
            report = await agent.cancel("the others have found it")
            self.cancelled = report.receipts
            for stream in streams:
                tokens = self._tally.ended(stream.partial, stream.receipt)
                if stream.partial.status == "cancelled" and stream.receipt is not None:
                    self._tally.lost(stream.receipt, tokens, _LONG)
            took = f"{len(report.receipts)} receipts in {report.seconds * 1000:.0f} ms"
            self._tell(agent, f"cancelled with the agent below it: {took}")

    async def _race(self, tasks: TaskGroup) -> None:
        """Ask in three ways; whoever is through first ends the others."""
        async with self.program.agent("referee") as agent:
            self._watch(agent, tasks)
            asked = [
                QUESTION,
                "Give a long answer: what is France known for?",
                "Give a long answer: what is there to see in Paris?",
            ]
            self.raced = await race(agent, [self._body(each) for each in asked])
            text = _flat(self.raced.result.text)
            count = len(self.raced.report.losers)
            self._tell(agent, f"{text} ({count} losers were stopped)")

    def _body(self, text: str) -> dict[str, Any]:
        known = {name: value for name, value in self._how.items() if value is not None}
        return {"messages": [{"role": "user", "content": text}], "max_tokens": _LONG, **known}

    # --- who listens ----------------------------------------------------------------------------

    def _watch(self, agent: Agent, tasks: TaskGroup) -> None:
        self.agents.append(agent)
        tasks.start_soon(self._listen, agent, agent.events())

    async def _listen(self, agent: Agent, events: AgentEvents) -> None:
        async for told in events:
            event = told.event
            self._audience.heard(agent.path, event)
            match event:
                case ToolStarted(name=name, arguments=arguments):
                    self.tool_calls += 1
                    self._tell(agent, f"calls {name} {_flat(arguments)}")
                case ToolFinished(result=result):
                    count = len(result.text.splitlines())
                    self._tell(agent, f"{result.call.name} {result.status}: {count} lines")
                case ToolOutput():
                    pass
                case Struct() if kind := event.__struct_config__.tag:
                    self.events[str(kind)] += 1
                case _:
                    pass

    def _tell(self, agent: Agent, text: str) -> None:
        self._audience.tell(agent.path, textwrap.shorten(text, 100, placeholder=" …"))


def _flat(text: str) -> str:
    return " ".join(text.split())
