"""One call within its limits."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnrp_sched.profile.scheduling import AbortReceipt
from nnrp_sched.profile.tools import ToolAnswer
from nnrp_sched_orchestrator.tool_call import BoundedCall, ToolLimits
from nnrp_sched_orchestrator.tools import EmitOutput, Tool, ToolEnd, function_tool

pytestmark = pytest.mark.anyio
SECONDS = 20


async def called(
    tool: Tool, arguments: str = "{}", limits: ToolLimits | None = None
) -> tuple[str, ToolAnswer]:
    """The output and the answer of a call."""
    pieces: list[str] = []

    async def emit(text: str) -> None:
        pieces.append(text)

    with anyio.fail_after(SECONDS):
        answer = await BoundedCall(tool, arguments, limits or ToolLimits()).run(emit)
    return "".join(pieces), answer


def answering(value: object) -> Tool:
    async def answer() -> Any:
        return value

    return function_tool(answer)


def raising(error: BaseException) -> Tool:
    async def fail() -> str:
        raise error

    return function_tool(fail)


def saying(*pieces: Any) -> Tool:
    async def say() -> AsyncIterator[Any]:
        for piece in pieces:
            yield piece

    return function_tool(say)


@pytest.mark.parametrize(
    ("value", "output"),
    [("text", "text"), (None, ""), ({"a": [1, "é"]}, '{"a":[1,"é"]}'), ("", ""), (3, "3")],
)
async def test_a_result_is_put_out_as_text_or_as_json(value: object, output: str) -> None:
    found, answer = await called(answering(value))
    assert found == output
    assert answer == ToolAnswer("completed", output_bytes=len(output.encode()))


async def test_the_items_of_a_generator_are_pieces_of_the_output() -> None:
    output, answer = await called(saying("a", "b\n", {"c": 1}, None))
    assert output == 'ab\n{"c":1}\n\n'
    assert answer.status == "completed"


async def test_arguments_reach_the_function_as_its_types_say() -> None:
    async def join(words: list[str], times: int = 2) -> str:
        return "-".join(words) * times

    tool = function_tool(join)
    assert (await called(tool, '{"words":["a","b"]}'))[0] == "a-ba-b"
    assert (await called(tool, '{"words":["a"],"times":1}'))[0] == "a"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"words":"a"}', "$.words"),
        ("{}", "`words`"),
        ('{"words":[],"more":1}', "more"),
        ("[]", "array"),
        ('{"words":[', "not JSON"),
        ("words", "not JSON"),
        ('{"words":[]}{"words":[]}', "not JSON"),
        ("\ud800", "join"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: str, told: str) -> None:
    reached: list[str] = []

    async def join(words: list[str]) -> None:
        reached.extend(words)

    output, answer = await called(function_tool(join), arguments)
    assert (output, answer.status) == ("", "failed")
    assert told in answer.message
    assert "call it again" in answer.message
    assert reached == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("path"), "KeyError: 'path'"),
        (ExceptionGroup("several", [OSError("gone")]), "OSError: gone"),
        (SystemExit(2), "SystemExit: 2"),
        (asyncio.CancelledError("its own"), "CancelledError"),
        (ValueError("x" * 10_000), "ValueError: xxx"),
    ],
)
async def test_whatever_a_tool_raises_is_its_answer(error: BaseException, told: str) -> None:
    _, answer = await called(raising(error))
    assert answer.status == "failed"
    assert told in answer.message
    assert len(answer.message) <= 2000


async def test_a_result_that_is_neither_text_nor_json_is_a_failure() -> None:
    _, answer = await called(answering(object()))
    assert answer.status == "failed"
    assert "object" in answer.message


async def test_a_tool_that_takes_too_long_is_stopped_and_cleans_up() -> None:
    cleaned: list[str] = []

    async def wait() -> AsyncIterator[str]:
        try:
            yield "began"
            await anyio.sleep_forever()
        finally:
            cleaned.append("up")

    output, answer = await called(function_tool(wait), limits=ToolLimits(seconds=0.05))
    assert (output, cleaned) == ("began", ["up"])
    assert answer.status == "failed"
    assert "0.05 s" in answer.message


async def test_output_beyond_the_limit_is_left_out_and_the_tool_goes_on() -> None:
    ended: list[bool] = []

    async def say() -> AsyncIterator[str]:
        for _ in range(100):
            yield "0123456789"
        ended.append(True)

    output, answer = await called(function_tool(say), limits=ToolLimits(output_bytes=25))
    assert output == "0123456789012345678901234"
    assert answer == ToolAnswer("completed", output_bytes=1000, dropped_bytes=975)
    assert ended == [True]


async def test_a_tool_that_never_stops_putting_out_is_stopped() -> None:
    async def say() -> AsyncIterator[str]:
        while True:
            yield "x" * 1000

    limits = ToolLimits(output_bytes=10_000, excess=3.0)
    output, answer = await called(function_tool(say), limits=limits)
    assert len(output) == 10_000
    assert answer.status == "failed"
    assert "30000 bytes" in answer.message


@given(st.lists(st.text(max_size=8), max_size=8), st.integers(0, 40))
@settings(max_examples=60)
async def test_what_is_handed_on_is_a_beginning_of_the_output_within_the_limit(
    pieces: list[str], limit: int
) -> None:
    output, answer = await called(saying(*pieces), limits=ToolLimits(output_bytes=limit))
    whole = "".join(pieces).encode(errors="replace")
    assert whole.startswith(output.encode())
    assert len(output.encode()) <= limit
    assert answer.output_bytes == len(whole)
    assert answer.dropped_bytes == len(whole) - len(output.encode())
    assert (answer.dropped_bytes == 0) == (len(whole) <= limit)


async def test_a_failure_of_who_takes_the_output_is_not_the_tools() -> None:
    async def emit(_text: str) -> None:
        raise ConnectionError("nobody there")

    with pytest.raises(ConnectionError, match="nobody there"):
        await BoundedCall(saying("x"), "{}", ToolLimits()).run(emit)


async def test_a_cancelled_call_says_what_became_of_its_tool() -> None:
    class Slow:
        """A tool whose end is told by somebody else."""

        endpoint = None

        async def run(self, emit: EmitOutput) -> ToolEnd:
            await anyio.sleep_forever()
            return ToolEnd()

        async def stop(self, reason: str) -> AbortReceipt:
            return AbortReceipt(reason, "running", True, False, None, 7.0)

    tool = Tool("slow", "", {}, lambda _arguments: Slow())
    call = BoundedCall(tool, "{}", ToolLimits())
    assert (await call.stop("early")).state == "admitting"

    async def emit(_text: str) -> None: ...

    with anyio.move_on_after(0.02):
        await call.run(emit)
    assert await call.stop("late") == AbortReceipt("late", "running", True, False, None, 7.0)


def test_a_caller_can_only_want_less() -> None:
    limits = ToolLimits(output_bytes=100, seconds=10.0)
    assert limits.within(None, None) == limits
    assert limits.within(50, 5.0) == ToolLimits(output_bytes=50, seconds=5.0)
    assert limits.within(10**9, 1e9) == limits


async def test_a_tool_that_says_nothing_without_end_is_stopped_when_its_time_is_over() -> None:
    async def busy() -> AsyncIterator[str]:
        while True:
            yield ""

    _, answer = await called(function_tool(busy), limits=ToolLimits(seconds=0.05))
    assert answer.status == "failed"
    assert "had not ended after 0.05 s" in answer.message


async def test_an_error_that_is_no_text_can_be_told_to_a_model() -> None:
    _, answer = await called(raising(FileNotFoundError("caf\udce9.txt")))
    assert answer.message == "FileNotFoundError: caf?.txt"
