"""A chat as its reader sees it: events, outcome, and every way of leaving early."""

import gc
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from nnrp_sched.client import Chat
from nnrp_sched.profile import OutputTextDelta
from tests.support.serving import (
    SECONDS,
    InMemory,
    body,
    script,
    scripted_session,
)

pytestmark = pytest.mark.anyio

ENDLESS = script(text="x", hold=True)


async def until_idle(served: InMemory) -> None:
    """Wait until the server runs no operation: what was left has been cancelled."""
    with anyio.fail_after(SECONDS):
        while len(served.server.admission):
            await anyio.lowlevel.checkpoint()


async def test_leaving_the_loop_by_break_cancels_once_the_chat_is_forgotten() -> None:
    async with scripted_session() as (served, session):
        async for event in session.chat(ENDLESS, stream=True):
            assert isinstance(event, OutputTextDelta)
            break
        gc.collect()
        await until_idle(served)


async def test_leaving_the_block_cancels_at_once() -> None:
    async with scripted_session() as (served, session):
        async with session.chat(ENDLESS, stream=True) as chat:
            await anext(chat)
        assert chat.outcome is not None
        assert chat.outcome.status == "cancelled"
        assert chat.outcome.text == "x"
        await until_idle(served)


async def test_an_exception_in_the_loop_cancels() -> None:
    async with scripted_session() as (served, session):
        with pytest.raises(ZeroDivisionError):
            async with session.chat(ENDLESS, stream=True) as chat:
                async for _ in chat:
                    raise ZeroDivisionError
        await until_idle(served)


async def test_cancelling_the_reading_task_cancels() -> None:
    async with scripted_session() as (served, session):
        started = anyio.Event()

        async def read() -> None:
            async for _ in session.chat(ENDLESS, stream=True):
                started.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await started.wait()
            tasks.cancel_scope.cancel()
        await until_idle(served)


async def test_cancel_returns_the_outcome_with_the_text_so_far() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            chat = session.chat(script(text=["a", "b"], hold=True), stream=True)
            await anext(chat)
            await anext(chat)
            outcome = await chat.cancel("enough")
    assert outcome.status == "cancelled"
    assert outcome.text == "ab"
    assert chat.outcome is outcome


async def test_cancel_while_another_task_reads_ends_that_loop() -> None:
    async with scripted_session() as (_, session):
        chat = session.chat(ENDLESS, stream=True)
        reading = anyio.Event()
        ended = anyio.Event()

        async def read() -> None:
            async for _ in chat:
                reading.set()
            ended.set()

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await reading.wait()
                outcome = await chat.cancel()
                assert outcome.status == "cancelled"
                await ended.wait()


async def test_a_finished_chat_keeps_its_outcome_when_cancelled() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            chat = session.chat(body(), stream=True)
            outcome = await chat.result()
            assert (await chat.cancel()) is outcome
    assert outcome.status == "completed"


async def test_a_chat_that_was_never_read_sends_nothing() -> None:
    async with scripted_session() as (served, session):
        chat = session.chat(body())
        outcome = await chat.cancel()
        assert outcome.status == "cancelled"
        assert session.in_flight == 0
        assert chat.operation_id is None
        assert len(served.server.admission) == 0


async def test_an_operation_beyond_the_session_s_places_waits_for_one() -> None:
    async with scripted_session(max_in_flight=1) as (_, session):
        assert session.max_in_flight == 1
        first = session.chat(ENDLESS, stream=True)
        await anext(first)
        outcomes: list[str] = []

        async def second() -> None:
            outcomes.append((await session.chat(body()).result()).status)

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(second)
                await anyio.wait_all_tasks_blocked()
                assert session.in_flight == 1
                await first.cancel()
    assert outcomes == ["completed"]


@pytest.mark.parametrize("leave", [Chat.cancel, Chat.aclose])
async def test_a_chat_left_while_it_waits_for_a_place_ends_its_reader_and_sends_nothing(
    leave: Callable[[Chat], Awaitable[object]],
) -> None:
    async with scripted_session(max_in_flight=1) as (served, session):
        holder = session.chat(ENDLESS, stream=True)
        await anext(holder)
        waiting = session.chat(ENDLESS, stream=True)
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiting.result)
                await anyio.wait_all_tasks_blocked()
                await leave(waiting)
            await holder.cancel()
            await until_idle(served)
        assert waiting.operation_id is None
        assert waiting.outcome is not None
        assert waiting.outcome.status == "cancelled"
        assert session.in_flight == 0


async def test_several_readers_of_a_chat_that_waits_for_a_place_submit_it_once() -> None:
    async with scripted_session(max_in_flight=2) as (_, session):
        holders = [session.chat(ENDLESS, stream=True) for _ in range(2)]
        for holder in holders:
            await anext(holder)
        waiting = session.chat(ENDLESS, stream=True)
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(waiting.result)
                await anyio.wait_all_tasks_blocked()
                for holder in holders:
                    await holder.cancel()
                await anyio.wait_all_tasks_blocked()
                assert session.in_flight == 1
                await waiting.cancel()


async def test_a_reader_that_lags_too_far_behind_loses_its_chat_and_no_other() -> None:
    from nnrp_sched.client import session as session_module
    from nnrp_sched.errors import ReaderTooSlow

    async with scripted_session() as (served, session):
        slow: Chat = session.chat(script(text="y", repeat=500_000), stream=True)
        await anext(slow)
        read = 1
        with anyio.fail_after(50):
            await until_idle(served)
            assert (await session.chat(body()).result()).status == "completed"
            with pytest.raises(ReaderTooSlow):
                async for _ in slow:
                    read += 1
    assert read > session_module._MAX_BUFFERED_EVENTS  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "condition",
    [
        {"deadline": float("inf")},
        {"deadline": float("nan")},
        {"deadline": 0.0},
        {"deadline": 1e300},
        {"expire_at": -1.0},
        {"token_budget": -1},
        {"token_budget": 2**64},
    ],
)
async def test_a_condition_that_cannot_be_said_is_refused_and_takes_no_place(
    condition: dict[str, Any],
) -> None:
    async with scripted_session(max_in_flight=1) as (_, session):
        with anyio.fail_after(SECONDS):
            for _ in range(2):
                with pytest.raises(ValueError, match=next(iter(condition))):
                    session.chat(body(), **condition)
            assert (await session.chat(body()).result()).status == "completed"
