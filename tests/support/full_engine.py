"""A real vLLM engine with no slot left."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.port import ChatCall
from nnrp_sched_patches.launch import Serving
from tests.support.vllm_chats import body

SLOTS = 8
"""Of the engine with the embedded model's own flags."""


@asynccontextmanager
async def full(serving: Serving) -> AsyncGenerator[TaskGroup, None]:
    """Every slot of the engine taken until the block ends, and longer than any test runs."""
    endless = body("Count.", max_tokens=1500, ignore_eos=True)
    names = [f"endless-{number}" for number in range(SLOTS)]
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(serving.engine.complete, ChatCall(name, endless))
        while (await serving.engine.queue()).running < SLOTS:
            await checkpoint()
        yield tasks
        await serving.engine.abort_operations(names, by="id")
