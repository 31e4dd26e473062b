"""What a session tells of its end and of its places, and a chat of its terminal."""

import anyio
import pytest

from nnrp_sched.client.places import Places
from nnrp_sched.server import ServerLimits
from tests.support.serving import SECONDS, script, scripted_server, scripted_session

pytestmark = pytest.mark.anyio


async def test_a_session_says_when_and_why_nothing_can_be_submitted_any_more() -> None:
    async with scripted_session() as (served, session):
        assert session.lost is None
        assert not session.ended.is_set()
        with anyio.fail_after(SECONDS):
            await served.server.drain(0)
            await session.ended.wait()
        assert "server_shutdown" in str(session.lost)


async def test_a_session_that_its_block_has_left_has_ended() -> None:
    async with scripted_server() as served, served.connect() as connection:
        async with connection.session() as session:
            pass
        assert session.ended.is_set()
        assert session.lost is not None


async def test_places_tell_whoever_watches_that_there_may_be_more_room() -> None:
    places, told = Places(2), list[tuple[int, int, bool]]()
    places.watch(lambda: told.append((places.taken, places.capacity, places.paused)))
    await places.acquire()
    places.release()
    places.pause()
    places.grant(1)
    places.open()
    assert told == [(0, 2, False), (0, 1, False), (0, 2, False)]


async def test_places_count_what_a_session_has_in_use() -> None:
    async with scripted_session(limits=ServerLimits(max_in_flight=3)) as (_, session):
        assert (session.places.taken, session.places.capacity) == (0, 3)
        chat = session.chat(script(text="x", hold=True), stream=True)
        await anext(chat)
        assert session.places.taken == 1
        await chat.cancel()
        assert session.places.taken == 0


async def test_the_end_of_a_chat_can_be_waited_for_by_others_than_its_reader() -> None:
    async with scripted_session() as (_, session):
        chat = session.chat(script(text="a b c", hold=True), stream=True)
        await chat.ended()  # Of what was never sent there is nothing to wait for.
        await anext(chat)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chat.ended)
            await anyio.wait_all_tasks_blocked()
            chat.ask_cancel("enough")
            with anyio.fail_after(SECONDS):
                await chat.ended()
        assert chat.outcome is None
        outcome = await chat.result()
        assert outcome.status == "cancelled"
        assert outcome.text == "a b c"
