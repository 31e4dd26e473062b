"""Calls whose callers must not be remembered.

Importing vLLM is one: it keeps some exceptions of its optional imports, each with the frames of all
callers, and a frame keeps its variables. What these come to hold, the engine among them, would live
until the interpreter has taken its modules apart, and the engine's `__del__` would fail there.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


async def on_own_stack(function: Callable[[], _Result]) -> _Result:
    """The result of `function`, called in this thread with the event loop alone as its caller."""

    async def call() -> _Result:
        return function()

    return await asyncio.create_task(call())
