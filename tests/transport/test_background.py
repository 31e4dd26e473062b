"""Background tasks that the block before them does not have to know of."""

import anyio
import pytest

from nnrp_sched.transport import background_tasks

pytestmark = pytest.mark.anyio


async def test_an_exception_of_the_block_leaves_as_it_is_and_ends_the_tasks() -> None:
    ended: list[bool] = []

    async def task() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    with pytest.raises(LookupError, match="mine"):
        async with background_tasks() as tasks:
            tasks.start_soon(task)
            await anyio.wait_all_tasks_blocked()
            raise LookupError("mine")
    assert ended == [True]


async def test_a_failing_task_ends_the_block() -> None:
    async def task() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        async with background_tasks() as tasks:
            tasks.start_soon(task)
            await anyio.sleep_forever()
    assert caught.group_contains(ZeroDivisionError)


async def test_a_cancelled_block_ends_as_cancelled() -> None:
    with anyio.move_on_after(0.01) as scope:
        async with background_tasks():
            await anyio.sleep_forever()
    assert scope.cancelled_caught
