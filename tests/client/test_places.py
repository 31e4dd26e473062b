"""Places for operations: the grant, the server's words on credit, and waits that always end."""

from functools import partial

import anyio
import anyio.lowlevel
import pytest

from nnrp_sched.client.places import Places

pytestmark = pytest.mark.anyio

SECONDS = 20


async def take(places: Places, taken: list[int], number: int) -> None:
    await places.acquire()
    taken.append(number)


async def test_places_are_given_in_the_order_they_were_asked_for() -> None:
    places, taken = Places(2), list[int]()
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(take, places, taken, number)
                await anyio.wait_all_tasks_blocked()
            assert taken == [0, 1]
            for released in range(3):
                places.release()
                await anyio.wait_all_tasks_blocked()
                assert taken == list(range(3 + released))
    assert taken == [0, 1, 2, 3, 4]


async def test_who_stops_waiting_leaves_no_place_taken() -> None:
    places, taken = Places(1), list[int]()
    with anyio.fail_after(SECONDS):
        await places.acquire()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, places, taken, 1)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, places, taken, 2)
            await anyio.wait_all_tasks_blocked()
            places.release()  # Given in the same turn of the loop in which the wait is cancelled.
            tasks.cancel_scope.cancel()
        places.release() if taken else None
        await places.acquire()
    assert taken in ([], [2])


@pytest.mark.parametrize("word", ["press", "pause"])
async def test_nothing_starts_against_the_servers_word_until_it_grants_again(word: str) -> None:
    places, taken = Places(4), list[int]()
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            places.pause() if word == "pause" else places.press(60_000)
            for number in range(3):
                tasks.start_soon(take, places, taken, number)
            await anyio.wait_all_tasks_blocked()
            assert taken == []
            places.grant(2)
            await anyio.wait_all_tasks_blocked()
            assert taken == [0, 1]
            places.grant(0)
            places.release()
            await anyio.wait_all_tasks_blocked()
            assert taken == [0, 1]
            places.grant(9)
    assert taken == [0, 1, 2]


async def test_a_word_that_does_not_come_is_not_waited_for_for_ever() -> None:
    places, taken = Places(4), list[int]()
    with anyio.fail_after(SECONDS):
        places.press(1)
        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(take, places, taken, number)
            while not taken:
                await anyio.lowlevel.checkpoint()
            # One tries, and the other waits for what comes of it.
            await anyio.wait_all_tasks_blocked()
            assert taken == [0]
            places.release()
    assert taken == [0, 1]


async def test_a_grant_never_exceeds_what_the_session_was_granted() -> None:
    places, taken = Places(2), list[int]()
    with anyio.fail_after(SECONDS):
        places.grant(1000)
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(take, places, taken, number)
            await anyio.wait_all_tasks_blocked()
            assert taken == [0, 1]
            tasks.cancel_scope.cancel()


async def test_the_end_of_the_session_wakes_everyone() -> None:
    places, taken = Places(2), list[int]()
    with anyio.fail_after(SECONDS):
        places.pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(take, places, taken, 1))
            await anyio.wait_all_tasks_blocked()
            places.open()
    assert taken == [1]
