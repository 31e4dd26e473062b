"""Whose cancellation a CancelledError is."""

import asyncio


def is_our_cancellation(error: BaseException) -> bool:
    """Whether this task is being cancelled; if not, a CancelledError is a fault of the engine's.

    Engines wait for tasks of their own, and those may be cancelled without anybody asking us.
    """
    task = asyncio.current_task()
    cancelled = task is not None and task.cancelling() > 0
    return cancelled and isinstance(error, asyncio.CancelledError)
