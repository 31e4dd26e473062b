"""A task group for the tasks behind a context manager, invisible to the code inside it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def background_tasks() -> AsyncGenerator[TaskGroup, None]:
    """Run tasks while the block runs and cancel them when it ends.

    An exception of the block leaves as it is, not inside an ExceptionGroup: whoever writes
    `async with connect(…)` did not ask for a task group. A failing background task still cancels
    the block and leaves as a group, because then there may be several errors to tell.
    """
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except BaseException as error:
            # Re-raised below, cancellation included, once the background tasks are gone.
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
