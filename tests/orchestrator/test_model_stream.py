"""Model calls on a server: events, results, every end in an acknowledged abort."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

import anyio
import pytest

from nnrp_sched.errors import ProfileError
from nnrp_sched.profile import Completed, Event, OutputTextDelta, Usage
from nnrp_sched_orchestrator.errors import DeadlineExceeded, QueueFull, StreamCancelled
from nnrp_sched_orchestrator.records import ModelResult, ToolCall
from nnrp_sched_orchestrator.stream import Stream
from tests.support.programs import ENDLESS, SECONDS, orchestra, program, until
from tests.support.server_stage import quick, scripted
from tests.support.serving import body, script

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]

ModelStream = Stream[Event, ModelResult]
ONE = quick(sessions=1, max_in_flight=1)


async def test_a_call_gives_its_text_as_it_comes_then_counts_and_the_whole_answer() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(script(text=["one ", "two"]))
            events = [event async for event in stream]
            result = await stream.result()
    *deltas, usage, completed = events
    assert [event.delta for event in deltas if isinstance(event, OutputTextDelta)] == [
        "one ",
        "two",
    ]
    assert isinstance(usage, Usage)
    assert isinstance(completed, Completed)
    assert (result.status, result.text, result.error) == ("completed", "one two", None)
    assert result.body is not None
    assert result.usage is not None
    assert result.usage["completion_tokens"] == 2
    assert stream.usage == result.usage
    assert result.receipt is not None
    assert (result.receipt.state, result.receipt.accepted, result.receipt.tokens) == (
        "finished",
        False,
        2,
    )
    times = stream.timings
    assert times.submitted is not None
    assert times.first_event is not None
    assert times.finished is not None
    assert times.created <= times.submitted <= times.first_event <= times.finished
    assert times.engine_queue_ms is not None


async def test_what_a_user_says_is_enough_and_the_server_s_first_model_answers() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            result = await agent.chat("good morning").result()
            named = await agent.chat(
                [{"role": "user", "content": "hi"}], model="reference-model"
            ).result()
    assert result.text == "You said: good morning"
    assert result.body is not None
    assert result.body["model"] == "example-model"
    assert named.body is not None
    assert named.body["model"] == "reference-model"


async def test_what_is_no_message_is_refused_before_anything_starts() -> None:
    async with program() as (_, agent):
        with pytest.raises(TypeError, match="messages"):
            agent.chat([1, 2])  # type: ignore[list-item]  # The point of the test.
        assert agent.streams == ()


async def test_tool_calls_are_events_and_part_of_the_result() -> None:
    calls = [
        {"name": "read", "arguments": '{"path": "a"}', "id": "c1"},
        {"name": "grep", "arguments": '{"word": "b"}', "id": "c2"},
    ]
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            result = await agent.chat(script(tool_calls=calls)).result()
    assert result.tool_calls == (
        ToolCall(0, "c1", "read", '{"path": "a"}'),
        ToolCall(1, "c2", "grep", '{"word": "b"}'),
    )


async def test_a_refusal_is_raised_as_the_profile_says_it_and_keeps_what_came() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(script(text=["a", "b"], fail_after=1, fail_status=503))
            with pytest.raises(ProfileError, match="503") as caught:
                await stream.result()
            assert caught.value.code == "backend_overload"
            assert caught.value.diagnostics is not None
            assert caught.value.diagnostics["retry_after_ms"] > 0
            assert stream.partial.text == "a"
            assert stream.partial.status == "failed"
            assert stream.partial.error is caught.value
            assert stream.receipt is not None
            assert (stream.receipt.state, stream.receipt.accepted) == ("finished", False)
            unknown = agent.chat("hi", model="no-such-model")
            with pytest.raises(ProfileError, match="does not exist"):
                await unknown.text()


async def test_t31_a_cancelled_and_a_failed_call_have_their_times_and_counts_as_well() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            failed = agent.chat(script(text=["a", "b"], fail_after=1, fail_status=503))
            with pytest.raises(ProfileError):
                await failed.result()
            cancelled = agent.chat(ENDLESS)
            await anext(cancelled)
            receipt = await cancelled.cancel()
    for stream in (failed, cancelled):
        times = stream.timings
        assert times.submitted is not None
        assert times.first_event is not None
        assert times.finished is not None
        assert times.created <= times.submitted <= times.first_event <= times.finished
        assert times.queue_ms >= 0
    assert (receipt.tokens or 0) >= 1
    assert receipt.latency_ms > 0


# --- every way of leaving ------------------------------------------------------------------------

Leave = Callable[[ModelStream], Awaitable[None]]


async def by_task_cancellation(stream: ModelStream) -> None:
    async with anyio.create_task_group() as tasks:

        async def read() -> None:
            async for _ in stream:
                tasks.cancel_scope.cancel()

        tasks.start_soon(read)


async def by_break_in_a_block(stream: ModelStream) -> None:
    async with stream:
        async for _ in stream:
            break


async def by_an_exception_in_a_block(stream: ModelStream) -> None:
    with pytest.raises(ZeroDivisionError):
        async with stream:
            async for _ in stream:
                raise ZeroDivisionError


async def by_a_timeout(stream: ModelStream) -> None:
    await anext(stream)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.result(), 0.001)


async def by_cancelling_it(stream: ModelStream) -> None:
    await anext(stream)
    await stream.cancel("enough")


async def by_cancelling_it_twice(stream: ModelStream) -> None:
    await anext(stream)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.cancel, "enough")
        tasks.start_soon(stream.cancel, "again")


WAYS: list[Leave] = [
    by_task_cancellation,
    by_break_in_a_block,
    by_an_exception_in_a_block,
    by_a_timeout,
    by_cancelling_it,
    by_cancelling_it_twice,
]


@pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)
async def test_t27_every_way_of_leaving_a_call_is_an_acknowledged_abort(
    leave: Leave,
) -> None:
    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(ENDLESS)
            await leave(stream)
            result = await stream.result()
            assert (result.status, result.text) == ("cancelled", "x")
            receipt = stream.receipt
            assert receipt is not None
            assert (receipt.state, receipt.accepted, receipt.authoritative) == (
                "running",
                True,
                True,
            )
            assert (receipt.tokens, receipt.unconfirmed) == (1, None)
            assert receipt.operation is not None
            assert receipt.endpoint == "host-0"
            assert agent.receipts == (receipt,)
            await play.idle()
    assert agent.spent.tokens == 1


async def test_a_call_that_is_forgotten_is_aborted() -> None:
    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            async for _ in agent.chat(ENDLESS):
                break
            gc.collect()
            await until(lambda: bool(agent.receipts))
            await play.idle()
        (receipt,) = agent.receipts
        assert (receipt.state, receipt.accepted) == ("running", True)


async def test_cancelling_before_it_has_a_place_costs_nothing() -> None:
    async with orchestra(pool=ONE) as play, play.orchestrator.program("p") as agent:
        with anyio.fail_after(SECONDS):
            first = agent.chat(ENDLESS)
            await anext(first)
            second = agent.chat(ENDLESS)
            third = agent.chat(ENDLESS)
            await until(lambda: third.state.position == 1)
            assert (second.state.kind, second.state.position, second.state.where) == (
                "queued",
                0,
                "pool",
            )
            receipt = await second.cancel("changed my mind")
            assert (receipt.state, receipt.accepted, receipt.authoritative) == (
                "queued",
                True,
                True,
            )
            assert (receipt.operation, receipt.tokens) == (None, 0)
            await until(lambda: third.state.position == 0)
            await first.cancel()
            assert isinstance(await anext(third), OutputTextDelta)
            await third.cancel()
        assert play.operations == 0


async def test_t17_one_sees_where_a_call_waits_and_cancelling_takes_it_out_of_the_queue() -> None:
    async with program(scripted(slots=1)) as (play, agent):
        with anyio.fail_after(SECONDS):
            first = agent.chat(ENDLESS)
            await anext(first)
            second = agent.chat(ENDLESS)
            await until(lambda: second.state.where == "engine" and second.state.position == 0)
            assert second.state.kind == "queued"
            receipt = await second.cancel()
            assert (receipt.state, receipt.accepted, receipt.tokens) == ("waiting", True, 0)
            assert first.state.kind == "running"
            await first.cancel()
            await play.idle()


async def test_t36_an_urgent_call_goes_before_those_that_wait_and_takes_no_running_ones_place() -> (
    None
):
    async with program(scripted(slots=1)) as (play, agent):
        with anyio.fail_after(SECONDS):
            running = agent.chat(ENDLESS)
            await anext(running)
            patient = agent.chat(ENDLESS)
            await until(lambda: patient.state.position == 0)
            async with agent.agent("urgent", priority=-5) as urgent:
                hurried = urgent.chat(ENDLESS)
                await until(lambda: hurried.state.where == "engine")
                await until(lambda: (hurried.state.position, patient.state.position) == (0, 1))
                assert running.state.kind == "running"
                await running.cancel()
                await anext(hurried)
                assert patient.state.kind == "queued"
                await hurried.cancel()
            await patient.cancel()
            await play.idle()


async def test_cancelling_as_soon_as_it_was_started_never_reaches_the_server() -> None:
    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(ENDLESS)
            receipt = await stream.cancel("at once")
        assert (receipt.state, receipt.accepted, receipt.operation) == ("queued", True, None)
        assert play.operations == 0


async def test_cancelling_after_the_end_changes_nothing() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(body())
            result = await stream.result()
            receipt = await stream.cancel("late")
        assert receipt == result.receipt
        assert receipt.accepted is False
        assert agent.receipts == ()


async def test_a_call_that_an_operator_cancels_says_so() -> None:
    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(ENDLESS)
            await anext(stream)
            async with play.hosts[0].connect() as connection, connection.session() as session:
                (receipt,) = await session.abort_operations(program="program")
            with pytest.raises(StreamCancelled):
                async for _ in stream:
                    pass
            result = await stream.result()
        assert receipt.accepted
        assert (result.status, result.text) == ("cancelled", "x")
        assert result.receipt is not None
        assert (result.receipt.operation, result.receipt.accepted) == (receipt.request_id, False)


async def test_what_comes_between_the_abort_and_the_end_is_kept() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(script(text=" w", repeat=1_000_000))
            await anext(stream)
            receipt = await stream.cancel()
            result = await stream.result()
        assert receipt.accepted
        assert receipt.tokens is not None
        # Events that the server had not sent yet are not sent after the abort.
        assert 1 <= len(result.text.split()) <= receipt.tokens
        assert agent.spent.tokens >= receipt.tokens


# --- time -----------------------------------------------------------------------------------------


async def test_t23_the_deadline_of_a_call_counts_from_its_start_and_its_wait_is_told() -> None:
    async with orchestra(pool=ONE) as play, play.orchestrator.program("p") as agent:
        with anyio.fail_after(SECONDS):
            first = agent.chat(ENDLESS)
            await anext(first)
            second = agent.chat(ENDLESS, deadline_seconds=0.02)
            with pytest.raises(DeadlineExceeded, match=r"0\.02") as caught:
                await second.result()
            assert caught.value.owner == second.id
            times = second.timings
            assert times.submitted is None
            assert times.queue_ms > 0
            assert second.receipt is not None
            assert second.receipt.state == "queued"
            await first.cancel()


async def test_a_deadline_ends_a_running_call_with_a_receipt() -> None:
    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            stream = agent.chat(ENDLESS, deadline_seconds=0.5)
            with pytest.raises(DeadlineExceeded):
                await stream.text()
            assert stream.receipt is not None
            assert (stream.receipt.state, stream.receipt.accepted) == ("running", True)
            assert stream.partial.text == "x"
            await play.idle()
        with pytest.raises(ValueError, match="deadline_seconds"):
            agent.chat("hi", deadline_seconds=0)


# --- bounds ---------------------------------------------------------------------------------------


async def test_a_full_queue_is_an_error_of_the_call_that_finds_it() -> None:
    pool = quick(sessions=1, max_in_flight=1, queue_limit=1)
    async with orchestra(pool=pool) as play, play.orchestrator.program("p") as agent:
        with anyio.fail_after(SECONDS):
            first = agent.chat(ENDLESS)
            await anext(first)
            second = agent.chat(ENDLESS)
            await until(lambda: second.state.position == 0)
            with pytest.raises(QueueFull):
                await agent.chat(ENDLESS).result()
            await agent.cancel()


async def test_many_calls_at_once_end_alone_or_are_aborted_together() -> None:
    async with program(scripted(slots=8)) as (play, agent):
        with anyio.fail_after(SECONDS):
            brief = [agent.chat(body(f"number {number}")) for number in range(40)]
            endless = [agent.chat(ENDLESS) for _ in range(40)]
            await until(lambda: play.operations >= 40)
            before = [each for each in brief if each.state.kind == "done"]
            report = await agent.cancel("all of it")
            await play.idle()
        assert len(report.receipts) == len(endless) + len(brief) - len(before)
        assert report.unconfirmed == ()
        # Those that ended by themselves while they were being cancelled have completed.
        accepted = {receipt.stream_id: receipt.accepted for receipt in report.receipts}
        for stream in (*endless, *brief):
            if stream.id in accepted:
                assert accepted[stream.id] == (stream.partial.status == "cancelled")
            else:
                assert stream.partial.status == "completed"
