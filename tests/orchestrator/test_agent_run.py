"""The tool loop: what runs when, what goes back to the model, and how it ends."""

import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile import (
    Completed,
    ErrorObject,
    Event,
    OutputTextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallError,
    ToolCallStarted,
)
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.agent_run import AgentRun, RunSettings
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.errors import BudgetExceeded, TurnsExceeded
from nnrp_sched_orchestrator.process_group import MARK
from nnrp_sched_orchestrator.records import ModelResult, StreamEvent
from nnrp_sched_orchestrator.run_records import RunEvent, RunResult, TurnStarted
from nnrp_sched_orchestrator.stream import Stream
from nnrp_sched_orchestrator.subprocess_tool import ProcessSettings, subprocess_tool
from nnrp_sched_orchestrator.tool_call import ToolLimits
from nnrp_sched_orchestrator.tool_stream import (
    ToolEvent,
    ToolFinished,
    ToolOutput,
    ToolResult,
    ToolStarted,
    ToolWork,
)
from nnrp_sched_orchestrator.turn import MAX_CALLS
from tests.support.conversations import Conversing, EventsWork, calls, conversing, says
from tests.support.processes import in_group, with_variable, written
from tests.support.programs import SECONDS, Play, program, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]


class Gates:
    """Tools that wait to be let go."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.running = 0
        self.most = 0
        self._open: set[str] = set()

    def open(self, *names: str) -> None:
        """Let these calls end."""
        self._open |= set(names)

    async def gate(self, name: str) -> str:
        """Wait until it is opened."""
        self.began.append(name)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            while name not in self._open:
                await checkpoint()
        finally:
            self.running -= 1
        return f"{name} is open"


async def echo(text: str) -> AsyncIterator[str]:
    """Say it, word by word."""
    for word in text.split():
        yield f"{word} "


async def fail() -> str:
    """Fail."""
    raise OSError("the disk is full")


def run_script(script: str) -> list[str]:
    """Run a script."""
    return ["/bin/sh", "-c", script]


shell = subprocess_tool(name="shell", settings=ProcessSettings(grace_seconds=0.1))(run_script)


def called(name: str, *, tool: str = "gate") -> tuple[str, str]:
    return tool, f'{{"name":"{name}"}}'


def engine_of(play: Play) -> Conversing:
    engine = play.hosts[0].engine
    assert isinstance(engine, Conversing)
    return engine


def started(agent: Agent, *turns: dict[str, Any], tools: Any, **members: Any) -> Any:
    """A run whose model says these things, one a turn."""
    stream: Stream[RunEvent, RunResult] = agent.run("Do it.", tools, turns=list(turns), **members)
    return stream


async def test_results_go_back_in_the_order_of_the_calls_whatever_ended_first() -> None:
    gates = Gates()
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            run = started(
                agent,
                calls(called("a"), called("b"), called("c"), text="Let me see."),
                says("All is open."),
                tools=[gates.gate],
            )
            await until(lambda: gates.running == 3)
            gates.open("c")
            await until(lambda: gates.running == 2)
            gates.open("a")
            await until(lambda: gates.running == 1)
            gates.open("b")
            result = await run.result()
        asked = engine_of(play).calls[1].body
    transcript = [
        {"role": "user", "content": "Do it."},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": f"call-gate-{at}",
                    "type": "function",
                    "function": {"name": "gate", "arguments": f'{{"name":"{name}"}}'},
                }
                for at, name in enumerate("abc")
            ],
        },
        *(
            {"role": "tool", "tool_call_id": f"call-gate-{at}", "content": f"{name} is open"}
            for at, name in enumerate("abc")
        ),
    ]
    assert asked["messages"] == transcript
    assert asked["tools"][0]["function"]["name"] == "gate"
    assert result.messages == (*transcript, {"role": "assistant", "content": "All is open."})
    assert (result.status, result.text, result.turns) == ("completed", "All is open.", 2)
    assert [call.text for call in result.calls] == ["a is open", "b is open", "c is open"]
    assert len(result.tool_receipts) == 3
    assert result.usage is not None
    assert result.usage["completion_tokens"] > 6


FORCED: list[Any] = ["required", {"type": "function", "function": {"name": "echo"}}]


@pytest.mark.parametrize("choice", [*FORCED, "auto", "none"])
async def test_a_forced_call_is_forced_until_one_was_made(choice: Any) -> None:
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            said = says("I will not."), calls(("echo", '{"text": "a"}')), says("Done.")
            turns = said[1:] if choice in FORCED else said[:1]
            run = started(agent, *turns, tools=[echo], tool_choice=choice)
            assert (await run.result()).status == "completed"
        asked = [call.body["tool_choice"] for call in engine_of(play).calls]
    assert asked == ([choice, "auto"] if choice in FORCED else [choice])


async def test_a_tool_starts_when_its_call_is_complete_and_the_model_streams_on() -> None:
    gates = Gates()
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            run = started(
                agent,
                calls(called("a"), called("b"), delay_ms=1),
                says("Done."),
                tools=[gates.gate],
            )
            engine = engine_of(play)
            while not gates.began:
                engine.let(1)
                for _ in range(50):
                    await checkpoint()
            assert gates.began == ["a"]
            (queued,) = (await engine.queue()).operations
            assert queued.state == "running"  # The second call is still being written.
            gates.open("a", "b")
            engine.let(100)
            result = await run.result()
    assert [call.text for call in result.calls] == ["a is open", "b is open"]


async def test_only_so_many_tools_run_at_once_and_the_others_wait_for_their_turn() -> None:
    gates = Gates()
    names = [str(number) for number in range(7)]
    async with program(conversing) as (_, agent):
        with anyio.fail_after(SECONDS):
            run = started(
                agent,
                calls(*(called(name) for name in names)),
                says("Done."),
                tools=[gates.gate],
                settings=RunSettings(tools_at_once=3),
            )
            await until(lambda: gates.running == 3)
            gates.open(*names)
            result = await run.result()
    assert gates.most == 3
    assert gates.began == names
    assert len(result.calls) == 7


async def test_model_and_tool_events_come_in_one_order() -> None:
    async with program(conversing) as (_, agent):
        with anyio.fail_after(SECONDS):
            run = started(
                agent,
                calls(("echo", '{"text":"one two"}'), ("nobody", "{}"), text="Hm."),
                says("Done."),
                tools=[echo],
            )
            events = [event async for event in run]
    turns = [at for at, event in enumerate(events) if isinstance(event, TurnStarted)]
    assert [events[at].turn for at in turns] == [1, 2]
    first, second = events[: turns[1]], events[turns[1] :]
    tool = [each for each in first if isinstance(each, ToolStarted | ToolOutput | ToolFinished)]
    mine = [each for each in tool if each.call_id == "call-echo-0"]
    assert [type(each) for each in mine] == [ToolStarted, ToolOutput, ToolOutput, ToolFinished]
    assert [type(each) for each in tool if each.call_id == "call-nobody-1"] == [ToolFinished]
    call = next(each for each in first if isinstance(each, ToolCallStarted))
    assert first.index(call) < first.index(mine[0])
    assert any(isinstance(each, Completed) for each in first)
    said = [each.delta for each in second if isinstance(each, OutputTextDelta)]
    assert "".join(said) == "Done."


async def test_the_run_waits_for_tools_and_says_so() -> None:
    gates = Gates()
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            run = started(agent, calls(called("a")), says("Done."), tools=[gates.gate])
            await until(lambda: bool(gates.began) and play.operations == 0)
            await until(lambda: run.state.kind == "waiting_for_tool")
            gates.open("a")
            await run.result()
            assert run.state.kind == "done"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("nobody", "{}"), "there is no tool 'nobody'; there are: echo, fail"),
        (("echo", '{"text":'), "complete JSON"),
        (("echo", "[1]"), "do not fit"),
        (("echo", '{"txt":"a"}'), "`txt`"),
        (("fail", "{}"), "OSError: the disk is full"),
    ],
)
async def test_what_goes_wrong_with_a_call_is_for_the_model_to_read(
    call: tuple[str, str], told: str
) -> None:
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            run = started(agent, calls(call), says("Sorry."), tools=[echo, fail])
            result = await run.result()
        asked = engine_of(play).calls[1].body["messages"]
    assert (result.status, result.text) == ("completed", "Sorry.")
    assert [each.status for each in result.calls] == ["failed"]
    assert asked[-1]["role"] == "tool"
    assert told in asked[-1]["content"]
    # A server would refuse a transcript whose arguments are no object.
    arguments = asked[-2]["tool_calls"][0]["function"]["arguments"]
    assert arguments == (call[1] if call[1] in ("{}", '{"txt":"a"}') else "{}")


async def test_T29_a_run_cancelled_during_tools_leaves_nothing_and_a_valid_transcript(
    tmp_path: Path,
) -> None:
    told = tmp_path / "pids"
    script = f"trap '' TERM; echo $$ >>{told}; echo started; sleep 1000 & sleep 1000"
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            run = started(
                agent,
                calls(("echo", '{"text":"one"}'), ("shell", f'{{"script":"{script}"}}')),
                tools=[echo, shell],
            )
            async for event in run:
                if isinstance(event, ToolOutput) and event.text == "started\n":
                    break
            receipt = await run.cancel("enough")
            (pid,) = await written(told)
            assert in_group(pid) == []
            result = await run.result()
            await play.idle()
    assert (receipt.accepted, receipt.authoritative) == (True, True)
    assert result.status == "cancelled"
    user, said, first, second = result.messages
    assert [each["id"] for each in said["tool_calls"]] == ["call-echo-0", "call-shell-1"]
    assert first == {"role": "tool", "tool_call_id": "call-echo-0", "content": "one "}
    assert second["tool_call_id"] == "call-shell-1"
    assert second["content"].startswith("started\n[cancelled: ")
    assert user["role"] == "user"
    assert [each.stream_id for each in agent.receipts if each.state == "local"] != []


async def test_T29_a_run_cancelled_while_the_model_writes_stops_it_and_its_early_tool() -> None:
    gates = Gates()
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            run = started(agent, calls(called("a"), called("b"), hold=True), tools=[gates.gate])
            await until(lambda: bool(gates.began))
            receipt = await run.cancel("enough")
            await play.idle()
            result = await run.result()
    assert (receipt.accepted, receipt.authoritative) == (True, True)
    assert receipt.tokens is not None
    assert receipt.tokens > 0
    assert gates.running == 0
    roles = [each["role"] for each in result.messages]
    answered = {each["tool_call_id"] for each in result.messages if each["role"] == "tool"}
    assert roles[:2] == ["user", "assistant"]
    assert {each["id"] for each in result.messages[1]["tool_calls"]} == answered


async def test_a_model_call_that_an_operator_ends_takes_its_tools_with_it() -> None:
    gates = Gates()
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            run = started(agent, calls(called("a"), hold=True), tools=[gates.gate])
            await until(lambda: bool(gates.began))
            async with play.hosts[0].connect() as connection, connection.session() as session:
                await session.abort_operations(program="program")
            with pytest.raises(NnrpSchedError):
                await run.result()
            await play.idle()
    assert gates.running == 0
    assert run.partial.status == "failed"
    assert [each["role"] for each in run.partial.messages] == ["user", "assistant", "tool"]
    assert "[cancelled: " in run.partial.messages[-1]["content"]


async def test_cancelling_the_agent_ends_run_model_and_tools_each_with_a_receipt() -> None:
    gates = Gates()
    async with program(conversing) as (play, root):
        with anyio.fail_after(SECONDS):
            async with root.agent("a") as agent:
                run = started(agent, calls(called("a"), called("b"), hold=True), tools=[gates.gate])
                await until(lambda: gates.running == 2)
                report = await agent.cancel("enough")
                await play.idle()
    assert len(report.receipts) == 4
    assert report.unconfirmed == ()
    assert all(each.accepted for each in report.receipts)
    assert run.partial.status == "cancelled"
    roles = [each["role"] for each in run.partial.messages]
    assert roles == ["user", "assistant", "tool", "tool"]


async def test_a_model_that_calls_tools_for_ever_is_stopped_and_can_be_gone_on_with() -> None:
    async with program(conversing) as (_, agent):
        with anyio.fail_after(SECONDS):
            again = calls(("echo", '{"text":"again"}'))
            run = started(
                agent, again, again, again, tools=[echo], settings=RunSettings(max_turns=2)
            )
            with pytest.raises(TurnsExceeded, match="2 times"):
                await run.result()
            result = run.partial
            assert (result.status, result.turns) == ("failed", 2)
            assert [each["role"] for each in result.messages] == [
                "user",
                *("assistant", "tool") * 2,
            ]
            more = agent.run(result.messages, [echo], turns=[again, again, says("Done.")])
            assert (await more.result()).text == "Done."


async def test_T48_a_model_call_that_fails_fails_the_run_once_and_stops_its_tools() -> None:
    """T48: a fault while tool calls stream is one error, and nothing goes on behind it."""
    gates = Gates()
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            broken = calls(called("a"), called("b"), fail_after=5)
            run = started(agent, broken, tools=[gates.gate])
            events: list[RunEvent] = []
            with pytest.raises(Exception, match="Scripted failure") as failure:
                async for event in run:
                    events.append(event)  # noqa: PERF401  # It ends by raising.
            await play.idle()
    assert gates.running == 0
    assert run.partial.status == "failed"
    assert run.partial.error is failure.value
    assert not any(isinstance(event, Completed) for event in events)
    messages = run.partial.messages
    calls_made: list[Any] = messages[1]["tool_calls"] if len(messages) > 1 else []
    assert len(messages) == 1 + bool(calls_made) + len(calls_made)


async def test_a_fan_out_that_allows_no_tool_ends_the_run_with_what_was_spent() -> None:
    async with program(conversing, budget=Budget(fan_out=1)) as (_, agent):
        with anyio.fail_after(SECONDS):
            gates = Gates()
            gates.open("a", "b")
            run = started(agent, calls(called("a"), called("b"), hold=False), tools=[gates.gate])
            with pytest.raises(BudgetExceeded) as refused:
                await run.result()
    assert refused.value.limit == "fan_out"
    assert [each["role"] for each in run.partial.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
    ]


async def test_who_listens_to_the_agent_hears_each_event_of_a_run_once() -> None:
    heard: list[StreamEvent[Any]] = []

    async with program(conversing) as (_, root):
        with anyio.fail_after(SECONDS):
            async with root.agent("a") as agent:
                events = agent.events()
                run = started(
                    agent,
                    calls(("echo", '{"text":"a b"}'), ("nobody", "{}")),
                    says("Done."),
                    tools=[echo],
                )
                read = [event async for event in run]
            heard = [event async for event in events]
    assert sorted(repr(each.event) for each in heard) == sorted(repr(each) for each in read)
    own: list[Any] = [type(each.event) for each in heard if each.stream_id == run.id]
    assert own == [TurnStarted, ToolFinished, TurnStarted]


async def test_a_run_follows_one_answer_only() -> None:
    async with program(conversing) as (_, agent):
        with pytest.raises(ValueError, match="n=2"):
            agent.run("Do it.", [echo], n=2)


# --- complaints about other systems, by their number in the research --------------------------


async def test_T46_deltas_as_coarse_as_can_be_lose_no_arguments() -> None:
    whole = {
        "tool_calls": [
            {
                "index": index,
                "id": f"c{index}",
                "type": "function",
                "function": {"name": "echo", "arguments": f'{{"text":"word{index}"}}'},
            }
            for index in range(3)
        ]
    }
    async with program(conversing) as (_, agent):
        with anyio.fail_after(SECONDS):
            run = started(agent, {"deltas": [whole]}, says("Done."), tools=[echo])
            result = await run.result()
    assert [call.text for call in result.calls] == ["word0 ", "word1 ", "word2 "]


async def test_T47_streamed_calls_are_those_of_an_answer_that_comes_whole() -> None:
    script = calls(
        ("echo", '{"text":"' + "w " * 50 + '"}'), ("echo", '{"text":"é\\n\\"}{"}'), text="So."
    )
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            result = await started(agent, script, says("Done."), tools=[echo]).result()
            async with play.hosts[0].connect() as connection, connection.session() as session:
                body = {
                    "model": "example-model",
                    "messages": [{"role": "user", "content": "Do it."}],
                    "scripted": script,
                }
                whole = await session.chat(body, stream=False).result()
    assert whole.body is not None
    message = whole.body["choices"][0]["message"]
    assert result.messages[1] == {
        "role": "assistant",
        "content": message["content"],
        "tool_calls": message["tool_calls"],
    }


@pytest.mark.parametrize("coarse", [False, True])
async def test_T49_T50_calls_that_all_have_index_0_are_all_made_and_answered(coarse: bool) -> None:
    entries = [
        {
            "index": 0,
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "echo", "arguments": f'{{"text":"word{number}"}}'},
        }
        for number in range(3)
    ]
    deltas = [{"tool_calls": entries}] if coarse else [{"tool_calls": [one]} for one in entries]
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            run = started(agent, {"deltas": deltas}, says("Done."), tools=[echo])
            result = await run.result()
        asked = engine_of(play).calls[1].body["messages"]
    assert [call.text for call in result.calls] == ["word0 ", "word1 ", "word2 "]
    assert [each["id"] for each in asked[1]["tool_calls"]] == ["c0", "c1", "c2"]
    assert [each["tool_call_id"] for each in asked[2:]] == ["c0", "c1", "c2"]


class Foreign:
    """An agent whose server is another one than ours: its answers are these events."""

    def __init__(self, agent: Agent, *answers: list[Event]) -> None:
        self._agent = agent
        self._answers = iter(answers)
        self.asked: list[Any] = []

    def chat(self, messages: Any, **_options: Any) -> Stream[Event, ModelResult]:
        """The next answer."""
        self.asked.append(messages)
        return self._agent.start(EventsWork(next(self._answers)), kind="model")

    def new_id(self) -> str:
        """The agent's."""
        return self._agent.new_id()

    def start(
        self, work: ToolWork, *, kind: Literal["tool"], name: str, stream_id: str
    ) -> Stream[ToolEvent, ToolResult]:
        """The agent's."""
        return self._agent.start(work, kind=kind, name=name, stream_id=stream_id)


async def run_on(agent: Agent, *answers: list[Event]) -> tuple[RunResult, list[Any]]:
    """What comes of a run with these answers, and what the model was asked."""
    owner = Foreign(agent, *answers)
    with anyio.fail_after(SECONDS):
        stream = agent.start(AgentRun("r", owner, "Do it.", [echo]), kind="run")
        return await stream.result(), owner.asked


async def test_T49_a_server_that_says_index_0_of_every_call_is_understood() -> None:
    events: list[Event] = []
    for number in range(2):
        item, call_id = f"item-{number}", f"c{number}"
        arguments = f'{{"text":"word{number}"}}'
        events += [
            ToolCallStarted(0, item, call_id, "echo"),
            ToolCallDelta(0, item, call_id, arguments),
            ToolCallCompleted(0, item, call_id, "echo", arguments),
        ]
    async with program() as (_, agent):
        result, asked = await run_on(agent, events, [OutputTextDelta(0, "Done.")])
    assert [call.text for call in result.calls] == ["word0 ", "word1 "]
    assert [each.get("tool_call_id") for each in asked[1]] == [None, None, "c0", "c1"]
    assert result.text == "Done."


async def test_an_answer_that_came_whole_has_its_tools_called_too() -> None:
    function = {"name": "echo", "arguments": '{"text":"word"}'}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    whole = Completed({"choices": [{"index": 0, "message": message}]})
    async with program() as (_, agent):
        result, asked = await run_on(agent, [whole], [OutputTextDelta(0, "Done.")])
    assert [call.text for call in result.calls] == ["word "]
    assert asked[1][1] == message


async def test_a_call_whose_arguments_never_became_json_is_answered_and_not_made() -> None:
    error = ErrorObject("server_error", "tool_call_incomplete", "The arguments end too soon.")
    events: list[Event] = [
        ToolCallStarted(0, "item", "c", "echo"),
        ToolCallDelta(0, "item", "c", '{"text":"wo'),
        ToolCallError(0, "item", "c", error),
    ]
    async with program() as (_, agent):
        result, asked = await run_on(agent, events, [OutputTextDelta(0, "Sorry.")])
    (call,) = result.calls
    assert call.status == "failed"
    assert call.message["content"] == "[failed: The arguments end too soon.]"
    assert asked[1][1]["tool_calls"][0]["function"] == {"name": "echo", "arguments": "{}"}


async def test_more_calls_than_one_answer_may_have_are_refused() -> None:
    events: list[Event] = [
        ToolCallCompleted(number, "i", f"c{number}", "echo", '{"text":"a"}')
        for number in range(MAX_CALLS + 2)
    ]
    async with program() as (_, agent):
        result, _ = await run_on(agent, events, [OutputTextDelta(0, "Done.")])
    statuses = [call.status for call in result.calls]
    assert statuses == ["completed"] * MAX_CALLS + ["failed"] * 2
    assert "make fewer" in result.calls[-1].message["content"]


async def test_T53_a_tool_that_takes_too_long_is_gone_before_the_model_is_asked_again() -> None:
    mark = secrets.token_hex(8)
    environment = {"PATH": os.environ["PATH"], MARK: mark}
    marked = subprocess_tool(settings=ProcessSettings(environment=environment))
    script = "sleep 1000 & sleep 1000"
    limits = ToolLimits(seconds=0.3)
    async with program(conversing) as (play, agent):
        with anyio.fail_after(SECONDS):
            run = started(
                agent,
                calls(("run_script", f'{{"script":"{script}"}}')),
                says("Then not."),
                tools=[marked(run_script)],
                settings=RunSettings(limits=limits),
            )
            async for event in run:
                if isinstance(event, TurnStarted) and event.turn == 2:
                    assert with_variable(f"{MARK}={mark}.") == []
            result = await run.result()
            assert len(engine_of(play).calls) == 2
    assert result.calls[0].status == "failed"
    assert "0.3 s" in result.calls[0].message["content"]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, "not with a whole chat body"),
        (5, "messages must be"),
        (None, "messages must be"),
        ([5], "messages must be"),
    ],
)
async def test_what_a_run_cannot_begin_with_is_named(messages: Any, told: str) -> None:
    async with program() as (_, root):
        with pytest.raises(TypeError, match=told):
            root.run(messages)
        assert root.streams == ()
