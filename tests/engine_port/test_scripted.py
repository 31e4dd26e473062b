"""The scripted engine: deterministic, shaped like vLLM, and prompt to end."""

from contextlib import aclosing
from typing import Any

import anyio
import pytest

from nnrp_sched.engine.port import AbortReceipt, ChatCall, Engine
from nnrp_sched.engine.scripted import MODELS, ScriptedEngine
from nnrp_sched.errors import BackendError
from nnrp_sched.profile import ChatMapper, Completed, OutputTextDelta, ToolCallDelta, Usage

pytestmark = pytest.mark.anyio

HELLO = [{"role": "user", "content": "Say hello."}]
LOOKUP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


def call(request_id: str = "r", **body: Any) -> ChatCall:
    return ChatCall(request_id, {"model": "example-model", "messages": HELLO, **body})


def scripted(request_id: str = "r", **script: Any) -> ChatCall:
    return call(request_id, scripted=script)


async def streamed(engine: Engine, request: ChatCall) -> list[dict[str, Any]]:
    with anyio.fail_after(5):
        async with aclosing(engine.stream(request)) as chunks:
            return [chunk async for chunk in chunks]


def deltas(chunks: list[dict[str, Any]], member: str, index: int = 0) -> list[Any]:
    """What each chunk's delta says of one choice, silence left out."""
    return [
        choice["delta"][member]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index and choice["delta"].get(member)
    ]


def finish_reasons(chunks: list[dict[str, Any]]) -> list[str]:
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    return [reason for reason in reasons if reason]


class Delays:
    """A sleep that takes no time and remembers what was asked of it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await anyio.lowlevel.checkpoint()


class Endless:
    """A sleep that never ends by itself."""

    def __init__(self) -> None:
        self.entered = anyio.Event()

    async def __call__(self, seconds: float) -> None:
        self.entered.set()
        await anyio.sleep_forever()


async def test_it_describes_itself() -> None:
    description = ScriptedEngine().description
    assert (description.family, description.models) == ("scripted", MODELS)
    assert description.tool_calls is True


async def test_the_answer_depends_on_the_last_user_message_and_on_nothing_else() -> None:
    engine = ScriptedEngine()
    first = await streamed(engine, call())
    assert "".join(deltas(first, "content")) == "You said: Say hello."
    assert await streamed(engine, call()) == first
    parts = [{"type": "text", "text": "Bonjour"}, {"type": "image_url"}]
    messages = [*HELLO, {"role": "user", "content": parts}, {"role": "assistant", "content": "x"}]
    other = await streamed(engine, call(messages=messages))
    assert "".join(deltas(other, "content")).startswith("You said: Bonjour")


async def test_streaming_or_not_the_answer_is_the_same() -> None:
    engine = ScriptedEngine()
    request = call(
        n=2,
        stream_options={"include_usage": True},
        scripted={"text": "a b", "reasoning": "c d", "tool_calls": [{"name": "f"}]},
    )
    mapper = ChatMapper()
    for chunk in await streamed(engine, request):
        mapper.chunk(chunk)
    completed = mapper.finish()[-1]
    assert isinstance(completed, Completed)
    assert completed.body == await engine.complete(request)


async def test_usage_is_streamed_only_when_asked_for_and_always_in_a_whole_answer() -> None:
    engine = ScriptedEngine()
    counts = {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
    assert all("usage" not in chunk for chunk in await streamed(engine, call()))
    asked = await streamed(engine, call(stream_options={"include_usage": True}))
    assert (asked[-1]["choices"], asked[-1]["usage"]) == ([], counts)
    assert (await engine.complete(call()))["usage"] == counts


async def test_the_reference_model_answers_in_a_single_delta() -> None:
    chunks = await streamed(ScriptedEngine(), call(model="reference-model"))
    mapper = ChatMapper()
    events = [event for chunk in chunks for event in mapper.chunk(chunk)]
    assert events == [OutputTextDelta(0, "You said: Say hello.")]
    assert not any(isinstance(event, Usage) for event in events)


REFUSALS: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "nope"}, 404, "The model `nope` does not exist."),
    ({"model": ["nope"]}, 404, "does not exist"),
    ({"model": "backend-error"}, 500, "failed"),
    ({"messages": "hi"}, 400, "messages"),
    ({"messages": ["hi"]}, 400, "messages"),
    ({"n": 0}, 400, "n must be an integer from 1 to 128"),
    ({"n": 129}, 400, "n must be"),
    ({"max_tokens": -1}, 400, "max_tokens"),
    ({"max_tokens": 10**30}, 400, "max_tokens must be an integer from 1 to"),
    ({"scripted": {"txet": "a"}}, 400, "txet"),
    ({"scripted": {"repeat": 0}}, 400, "repeat"),
    ({"scripted": {"delay_ms": -1}}, 400, "delay_ms"),
    ({"tools": [{}], "tool_choice": "required"}, 400, "tools"),
    ({"scripted": {"fail_status": 429}}, 429, "429"),
]


@pytest.mark.parametrize(("body", "status", "named"), REFUSALS, ids=str)
async def test_a_refusal_has_its_status(body: dict[str, Any], status: int, named: str) -> None:
    engine = ScriptedEngine()
    with pytest.raises(BackendError, match=named) as whole:
        await engine.complete(call(**body))
    with pytest.raises(BackendError, match=named) as stream:
        await streamed(engine, call(**body))
    assert whole.value.status == stream.value.status == status
    assert (await engine.abort("r")).state == "unknown"


async def test_a_message_that_mentions_a_tool_calls_the_first_tool() -> None:
    engine = ScriptedEngine()
    messages = [{"role": "user", "content": "Call the lookup tool."}]
    chunks = await streamed(engine, call(messages=messages, tools=[LOOKUP]))
    mapper = ChatMapper()
    events = [event for chunk in chunks for event in mapper.chunk(chunk)]
    pieces = [event.arguments_delta for event in events if isinstance(event, ToolCallDelta)]
    assert len(pieces) > 1
    assert "".join(pieces) == '{"city": "text", "days": 1}'
    assert finish_reasons(chunks) == ["tool_calls"]


async def test_a_made_up_call_passes_the_first_of_the_values_that_a_parameter_allows() -> None:
    parameters = {"properties": {"unit": {"enum": ["K", "C"]}}, "required": ["unit"]}
    tools = [{"type": "function", "function": {"name": "heat", "parameters": parameters}}]
    chunks = await streamed(ScriptedEngine(), call(tools=tools, tool_choice="required"))
    pieces = [entry for piece in deltas(chunks, "tool_calls") for entry in piece]
    arguments = "".join(entry["function"]["arguments"] for entry in pieces)
    assert arguments == '{"unit": "K"}'


@pytest.mark.parametrize(
    "body",
    [
        {"messages": HELLO, "tools": [LOOKUP]},
        {"messages": [{"role": "user", "content": "a tool"}]},
        {
            "messages": [{"role": "user", "content": "a tool"}],
            "tools": [LOOKUP],
            "tool_choice": "none",
        },
    ],
    ids=["not mentioned", "no tools", "forbidden"],
)
async def test_otherwise_the_answer_is_text(body: dict[str, Any]) -> None:
    chunks = await streamed(ScriptedEngine(), call(**body))
    assert finish_reasons(chunks) == ["stop"]


async def test_a_script_sets_pieces_reasoning_and_parallel_tool_calls() -> None:
    chunks = await streamed(
        ScriptedEngine(),
        scripted(
            text=["a", "b"],
            repeat=2,
            reasoning="so it is",
            tool_calls=[{"name": "f", "arguments": '{"a"', "id": "x"}, {"name": "g"}],
        ),
    )
    assert deltas(chunks, "content") == ["a", "b", "a", "b"]
    assert deltas(chunks, "reasoning") == ["so", " it", " is"]
    entries = [entry for piece in deltas(chunks, "tool_calls") for entry in piece]
    heads = [(entry["index"], entry["id"]) for entry in entries if "id" in entry]
    assert heads == [(0, "x"), (1, "chatcmpl-tool-0-1")]
    for position, arguments in enumerate(['{"a"', "{}"]):
        own = [entry["function"] for entry in entries if entry["index"] == position]
        assert "".join(function["arguments"] for function in own) == arguments


async def test_choices_take_turns() -> None:
    chunks = await streamed(ScriptedEngine(), call(n=3, scripted={"text": ["a", "b"]}))
    order = [choice["index"] for chunk in chunks for choice in chunk["choices"]]
    assert order == [0, 1, 2] * 4
    assert deltas(chunks, "content", index=2) == ["a", "b"]


@pytest.mark.parametrize(("limit", "reason"), [(1, "length"), (3, "length"), (4, "stop")])
async def test_a_token_limit_cuts_the_answer(limit: int, reason: str) -> None:
    chunks = await streamed(ScriptedEngine(), call(max_completion_tokens=limit, max_tokens=9))
    assert len(deltas(chunks, "content")) == limit
    assert finish_reasons(chunks) == [reason]


async def test_every_piece_waits_for_its_delay() -> None:
    delays = Delays()
    await streamed(ScriptedEngine(sleep=delays), scripted(text=["a", "b"], delay_ms=250))
    assert delays.seconds == [0.25, 0.25]


async def test_a_failure_comes_after_as_many_pieces_as_the_script_says() -> None:
    for count in (0, 1, 2):
        engine = ScriptedEngine()
        pieces: list[str] = []
        with pytest.raises(BackendError) as caught:
            async for chunk in engine.stream(
                scripted(text=["a", "b"], fail_after=count, fail_status=503)
            ):
                pieces += deltas([chunk], "content")
        assert (caught.value.status, len(pieces)) == (503, count)
        assert (await engine.abort("r")).state == "unknown"
    assert len(await streamed(ScriptedEngine(), scripted(text=["a"], fail_after=5))) == 3


async def test_an_abort_ends_a_held_stream_with_finish_reason_abort() -> None:
    engine = ScriptedEngine()
    chunks: list[dict[str, Any]] = []
    receipts: list[AbortReceipt] = []
    with anyio.fail_after(5):
        async for chunk in engine.stream(scripted(text=["a", "b"], hold=True)):
            chunks.append(chunk)
            if deltas([chunk], "content") == ["b"]:
                receipts += [await engine.abort("r"), await engine.abort("r")]
    assert finish_reasons(chunks) == ["abort"]
    first, second = receipts
    assert first == AbortReceipt("r", "running", True, True, 2, 0.0)
    assert (second.state, second.accepted) == ("finished", False)
    assert (await engine.abort("r")).state == "unknown"


async def test_an_abort_stops_the_text_where_it_is_even_within_a_delay() -> None:
    sleep = Endless()
    engine = ScriptedEngine(sleep=sleep)
    bodies: list[dict[str, Any]] = []
    receipts: list[AbortReceipt] = []

    async def complete() -> None:
        bodies.append(await engine.complete(scripted(text=["a"], delay_ms=1)))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(complete)
            await sleep.entered.wait()
            receipts.append(await engine.abort("r"))
    assert receipts == [AbortReceipt("r", "running", True, True, 0, 0.0)]
    (choice,) = bodies[0]["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("abort", "")


async def test_closing_a_stream_early_forgets_the_call() -> None:
    engine = ScriptedEngine()
    async with aclosing(engine.stream(scripted(text=["a"], hold=True))) as chunks:
        await anext(chunks)
        with pytest.raises(BackendError, match="already running"):
            await engine.complete(call())
    assert (await engine.abort("r")).state == "unknown"
    assert await engine.complete(call())


async def test_cancelling_a_waiting_call_forgets_it() -> None:
    sleep = Endless()
    engine = ScriptedEngine(sleep=sleep)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.complete, scripted(text=["a"], delay_ms=1))
            await sleep.entered.wait()
            tasks.cancel_scope.cancel()
    assert (await engine.abort("r")).state == "unknown"


async def test_a_long_answer_takes_its_time_until_it_is_aborted() -> None:
    delays = Delays()
    engine = ScriptedEngine(sleep=delays)
    messages = [{"role": "user", "content": "Start a long answer."}]
    chunks: list[dict[str, Any]] = []
    async for chunk in engine.stream(call(messages=messages)):
        chunks.append(chunk)
        if deltas([chunk], "content"):
            await engine.abort("r")
    assert len(deltas(chunks, "content")) == 1
    assert finish_reasons(chunks) == ["abort"]
    assert min(delays.seconds) > 0


async def test_calls_run_beside_each_other() -> None:
    engine = ScriptedEngine()
    finished: list[str] = []

    async def run(request_id: str, pieces: int) -> None:
        chunks = await streamed(engine, scripted(request_id, text=["x"], repeat=pieces))
        assert len(deltas(chunks, "content")) == pieces
        finished.append(request_id)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, "long", 200)
            tasks.start_soon(run, "short", 3)
    assert finished == ["short", "long"]
