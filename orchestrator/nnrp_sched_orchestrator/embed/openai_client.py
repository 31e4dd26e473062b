"""Clients of `openai` whose requests are calls of an agent.

```python
async with async_openai(agent) as client:
    answer = await client.chat.completions.create(model="m", messages=messages)
```

Chats (streamed or whole) and the list of models are served, everything else is answered with 404.
A client's `timeout` and `max_retries` count as ever, but a retry takes over the call that is still
running instead of starting another. A stream is best left by `async with`; one that is only left by
`break` and stays referenced is found and stopped once its buffer has been full for a while
(`StreamSettings`).
"""

import ctypes
import os
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from threading import Thread
from typing import Any

from anyio.from_thread import start_blocking_portal

from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.embed.extras import missing
from nnrp_sched_orchestrator.embed.gateway import Gateway
from nnrp_sched_orchestrator.embed.openai_transport import (
    BASE_URL,
    async_transport,
    sync_transport,
)
from nnrp_sched_orchestrator.embed.records import EmbedSettings
from nnrp_sched_orchestrator.orchestrator import Orchestrator

try:
    import httpx2
    from openai import AsyncOpenAI, OpenAI
except ImportError as fault:
    raise missing(__name__, "openai", fault) from fault

_NO_KEY = "none"
"""`openai` wants an API key; nobody looks at it here."""


def async_openai(
    agent: Agent, *, settings: EmbedSettings | None = None, **options: Any
) -> AsyncOpenAI:
    """A client whose requests are calls of the agent, for the agent's event loop.

    `options` are those of `AsyncOpenAI`. Closing the client leaves the agent as it is.
    """
    return over_gateway(Gateway(agent, settings), **options)


def over_gateway(gateway: Gateway, **options: Any) -> AsyncOpenAI:
    """A client over a gateway, which it closes."""
    http_client = httpx2.AsyncClient(transport=async_transport(gateway))
    known: dict[str, Any] = {"api_key": _NO_KEY, **options}
    return AsyncOpenAI(**known, base_url=BASE_URL, http_client=http_client)


def openai_client(
    endpoints: str | Sequence[str],
    *,
    program: str = "openai",
    budget: Budget | None = None,
    priority: int | None = None,
    settings: EmbedSettings | None = None,
    connect: dict[str, Any] | None = None,
    **options: Any,
) -> OpenAI:
    """A blocking client with an event loop, an orchestrator and a program of its own.

    `connect` are further arguments of `Orchestrator.connect`, `options` those of `OpenAI`. Closing
    the client ends all of it; one that is forgotten is closed too. Raises what connecting raises.
    """
    stack = ExitStack()
    try:
        portal = stack.enter_context(start_blocking_portal(name="nnrp-openai"))
        orchestrator = stack.enter_context(
            portal.wrap_async_context_manager(Orchestrator.connect(endpoints, **(connect or {})))
        )
        agent = stack.enter_context(
            portal.wrap_async_context_manager(
                orchestrator.program(program, budget=budget, priority=priority)
            )
        )
        gateway = portal.call(Gateway, agent, settings)
        # Leaving a program waits for its streams, and somebody may still hold one.
        stack.callback(lambda: portal.call(agent.cancel, "the client was closed"))
    except BaseException:
        stack.close()
        raise
    transport = sync_transport(gateway)
    # A client that nobody closes may be forgotten in any thread, its own loop's among them, and
    # that one cannot wait for itself.
    finalizer = weakref.finalize(transport, _close, stack, gateway, os.getpid())
    transport.on_close = finalizer
    http_client = httpx2.Client(transport=transport)
    known: dict[str, Any] = {"api_key": _NO_KEY, **options}
    return OpenAI(**known, base_url=BASE_URL, http_client=http_client)


def _close(stack: ExitStack, gateway: Gateway, process: int) -> None:
    if os.getpid() != process:
        # A fork has nothing of it to end, and the parent's goes on. To be collected, the portal
        # would wait for its thread, which is not here: it must outlive this process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stack))
        return
    if gateway.runs_here():
        Thread(target=stack.close, name="nnrp-openai-close").start()
    else:
        stack.close()
