"""The tasks of streams: each has an owner, and none can block its owner for ever."""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

import anyio

logger = logging.getLogger(__name__)


class OwnedTasks:
    """Tasks that outlive the block that started them, up to the end of their owner.

    Not a task group, because the end of a task group waits for whatever a task makes of its
    cancellation, and tools are other people's code.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._tasks)

    def check_loop(self) -> None:
        """Raises `RuntimeError` outside of the event loop that they belong to.

        Nothing would wake up there, so whoever waits would wait for ever.
        """
        check_loop(self._loop, "the orchestrator")

    def start(self, work: Coroutine[Any, Any, None], name: str, context: Context) -> None:
        """Start a task that ends by itself once it is told to, and that raises nothing."""
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def wait(self, seconds: float) -> tuple[str, ...]:
        """Wait for all of them, at most so long; the names of those that still run."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(seconds):
            while self._tasks:
                await asyncio.wait(set(self._tasks))
        left = tuple(sorted(task.get_name() for task in self._tasks))
        if left:
            logger.error("still running after %g s, left behind: %s", seconds, ", ".join(left))
        return left

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("task %s failed", task.get_name(), exc_info=task.exception())


def check_loop(loop: asyncio.AbstractEventLoop, what: str) -> None:
    """Raises `RuntimeError` where another event loop runs than the one that something is bound to.

    `RuntimeError` also comes where none runs.
    """
    if asyncio.get_running_loop() is not loop:
        raise RuntimeError(
            f"{what} belongs to another event loop: use it in the loop and the thread in which it "
            "was made, or connect an orchestrator here (from a thread: "
            "asyncio.run_coroutine_threadsafe)"
        )
