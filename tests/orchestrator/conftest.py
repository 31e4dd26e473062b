"""Fixtures of the orchestrator's tests."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

_TURNS = 1000


@pytest.fixture
async def no_leaked_task() -> AsyncGenerator[None, None]:
    """Nothing that a test has started is left when it has ended."""
    before = _tasks()
    yield
    for _ in range(_TURNS):
        if _tasks() <= before:
            return
        await checkpoint()
    assert not {repr(task) for task in _tasks() - before}


def _tasks() -> set[asyncio.Task[Any]]:
    """All tasks but those in which anyio's plugin hands over to its runner."""
    return {task for task in asyncio.all_tasks() if "_call_in_runner_task" not in repr(task)}
