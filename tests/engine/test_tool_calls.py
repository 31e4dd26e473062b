"""Tool calls of a real vLLM over NNRP: the streamed ones are those of the whole answer.

A `choice` of one text makes the small model write what the parser is to read. What no text makes
vLLM's parser do, a name that comes late and a failure in the middle of a call, a stand-in does in
its place: everything else, the steps of the engine included, is vLLM's own.
"""

import json
from functools import partial
from importlib import import_module
from typing import Any

import anyio
import pytest

from nnrp_sched.client import Outcome, Session
from nnrp_sched.profile import (
    Event,
    OutputTextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallError,
    ToolCallStarted,
)
from nnrp_sched_patches.launch import Serving
from tests.support.serving import scripted_session
from tests.support.vllm_chats import BODIES, TOOLS, body

pytestmark = pytest.mark.anyio

SECONDS = 120
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "strict": True, "parameters": NOTHING},
}
LENIENT = [
    {"type": "function", "function": {"name": "get_weather"}},
    {"type": "function", "function": {"name": "get_time"}},
]
"""Not strict: the arguments are then up to the `choice`."""

OSLO = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
ROME = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
NOW = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'


def writing(text: str, **members: Any) -> dict[str, Any]:
    """A chat that is answered with this text."""
    forced = {"choice": [text]}
    return body("Go.", tools=LENIENT, structured_outputs=forced, max_tokens=200, **members)


EMPTY = "by default, empty arguments"
NONE = "none, words like a call"
CHATS = {
    "auto, two calls and words before": writing(f"Well. {OSLO}{ROME}", tool_choice="auto"),
    "auto, no call": writing("It is late.", tool_choice="auto"),
    EMPTY: writing(NOW),
    "auto, up to the model": body("Say hi.", tools=TOOLS, tool_choice="auto", max_tokens=8),
    "required": BODIES["required tool"],
    "required, no arguments": body("Time?", tools=[CLOCK], tool_choice="required", max_tokens=100),
    "named": BODIES["named tool"],
    "none": writing("It is late.", tool_choice="none"),
    NONE: writing(OSLO, tool_choice="none"),
}
EXPECTED = {
    "auto, two calls and words before": [
        ("get_weather", '{"city": "Oslo"}'),
        ("get_weather", '{"city": "Rome"}'),
    ],
    "auto, no call": [],
    EMPTY: [("get_time", "{}")],
    "none": [],
    NONE: [],
}
"""The calls where the text is known."""


def hermes() -> Any:
    """The class of vLLM's parser for this model."""
    return import_module("vllm.tool_parsers").ToolParserManager.get_tool_parser("hermes")


def choice_of(outcome: Outcome) -> dict[str, Any]:
    """The one choice of an answer."""
    assert outcome.body is not None
    (choice,) = outcome.body["choices"]
    found: dict[str, Any] = choice
    return found


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and arguments of each call."""
    calls = choice["message"].get("tool_calls") or ()
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def values(calls: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    """The calls with what their arguments say.

    vLLM's hermes parser puts the arguments of a whole answer into a form of its own, and streams
    them as the model wrote them: white space differs, over its HTTP server too.
    """
    return [(name, json.loads(arguments)) for name, arguments in calls]


class Answer:
    """What came of a chat."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.outcomes: list[Outcome] = []

    async def ask(self, session: Session, chat: dict[str, Any], *, stream: bool = True) -> None:
        """Read a chat to its end."""
        reading = session.chat(chat, stream=stream)
        async for event in reading:
            self.events.append(event)
        self.outcomes.append(await reading.result())

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        (outcome,) = self.outcomes
        return outcome


@pytest.mark.parametrize("name", CHATS)
async def test_a_stream_calls_what_the_whole_answer_calls(serving: Serving, name: str) -> None:
    exact = hasattr(hermes(), "_extract_tool_args")
    if name == EMPTY and not exact:
        pytest.skip("empty arguments: this vLLM's hermes parser streams them as no text at all")
    if name == NONE and serving.engine.description.binding == "0.22.x":
        pytest.skip("tool_choice none: this vLLM streams what looks like a call, over HTTP too")
    whole, streamed = Answer(), Answer()
    async with scripted_session(serving.engine) as (_, session):
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(whole.ask, session, CHATS[name], stream=False))
                tasks.start_soon(streamed.ask, session, CHATS[name])
    events = streamed.events
    expected, final = choice_of(whole.outcome), choice_of(streamed.outcome)
    calls = calls_of(expected)
    assert calls == EXPECTED.get(name, calls)
    if name.startswith(("required", "named")):
        assert calls
    assert values(calls_of(final)) == values(calls)
    if name in EXPECTED:
        assert calls_of(final) == calls
    if exact or not calls:
        # The older hermes parser lets pieces of its tags through into a stream's text.
        assert (final["message"]["content"] or "") == (expected["message"]["content"] or "")
    assert final["finish_reason"] == expected["finish_reason"]
    assert (whole.outcome.status, streamed.outcome.status) == ("completed", "completed")
    completed = [event for event in events if isinstance(event, ToolCallCompleted)]
    assert [(call.name, call.arguments) for call in completed] == calls_of(final)
    assert [call.index for call in completed] == list(range(len(calls)))
    for call in completed:
        deltas = [
            event.arguments_delta
            for event in events
            if isinstance(event, ToolCallDelta) and event.call_id == call.call_id
        ]
        assert "".join(deltas) == call.arguments
    text = "".join(event.delta for event in events if isinstance(event, OutputTextDelta))
    assert text == (final["message"]["content"] or "")


# --- with a stand-in that reads for vLLM's parser ----------------------------------------------


class ParserFailure(Exception):
    """What the stand-in raises."""


def read_by(monkeypatch: pytest.MonkeyPatch, *steps: dict[str, Any] | None) -> None:
    """Let vLLM's tool parser say this at its first steps, and nothing after; None: it raises.

    A step is an entry of a delta's `tool_calls`.
    """
    parser = hermes()
    names = import_module(parser.__module__)
    left = iter(steps)
    silence: dict[str, Any] = {}

    def extract(self: Any, *_: Any, **__: Any) -> Any:
        del self
        step = next(left, silence)
        if step is None:
            raise ParserFailure("the parser is at a loss")
        if not step:
            return None
        entry = names.DeltaToolCall(index=0, **step)
        return names.DeltaMessage(tool_calls=[entry])

    monkeypatch.setattr(parser, "extract_tool_calls_streaming", extract)


READ = writing("It is very late in the evening.", tool_choice="auto")


async def test_a_name_that_comes_late_is_waited_for_and_the_arguments_with_it(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by(
        monkeypatch,
        {"id": "call-1", "type": "function", "function": {"arguments": '{"city"'}},
        {"function": {"arguments": ': "Os'}},
        {"function": {"name": "get_weather"}},
        {"function": {"arguments": 'lo"}'}},
    )
    async with scripted_session(serving.engine) as (_, session):
        with anyio.fail_after(SECONDS):
            answer = Answer()
            await answer.ask(session, READ)
    assert answer.outcome.status == "completed"
    of_call = [
        event
        for event in answer.events
        if isinstance(event, ToolCallStarted | ToolCallDelta | ToolCallCompleted)
    ]
    assert of_call == [
        ToolCallStarted(0, "tool-call-0-0", "call-1", "get_weather"),
        ToolCallDelta(0, "tool-call-0-0", "call-1", '{"city": "Os'),
        ToolCallDelta(0, "tool-call-0-0", "call-1", 'lo"}'),
        ToolCallCompleted(0, "tool-call-0-0", "call-1", "get_weather", '{"city": "Oslo"}'),
    ]
    assert calls_of(choice_of(answer.outcome)) == [("get_weather", '{"city": "Oslo"}')]


async def test_a_parser_that_raises_in_mid_call_ends_the_call_and_the_chat_and_nothing_else(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by(
        monkeypatch,
        {"id": "call-1", "type": "function", "function": {"name": "get_weather"}},
        {"function": {"arguments": '{"city"'}},
        None,
    )
    endless = {**READ, "structured_outputs": None, "max_tokens": 1500, "ignore_eos": True}
    async with scripted_session(serving.engine) as (_, session):
        with anyio.fail_after(SECONDS):
            answer = Answer()
            await answer.ask(session, endless)
            # The rest of the 1500 tokens is not made.
            while (await session.queue()).operations:
                pass
            monkeypatch.undo()
            again = await session.chat(writing(ROME), stream=True).result()
    events, outcome = answer.events, answer.outcome
    assert outcome.status == "error"
    assert outcome.error is not None
    started = [event for event in events if isinstance(event, ToolCallStarted)]
    failed = [event for event in events if isinstance(event, ToolCallError)]
    assert [event.call_id for event in started] == ["call-1"]
    assert [event.call_id for event in failed] == ["call-1"]
    assert not any(isinstance(event, ToolCallCompleted) for event in events)
    assert calls_of(choice_of(again)) == [("get_weather", '{"city": "Rome"}')]
    assert serving.engine.ledger.live == []
