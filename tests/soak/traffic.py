"""Structured random traffic against a server that carries healthy clients.

The healthy clients' results must all be right, and when the others are gone nothing of them is
left: no connection, no operation, no task.
"""

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.lowlevel
from msgspec import Struct

from nnrp_sched.client import Session, connect
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.server import Server, ServerLimits, serve
from tests.soak.vandals import Vandal, catalogue
from tests.support.carriers import ENDPOINTS, Place, client_security, server_security
from tests.support.serving import body, script

VANDALS = 6
_SECONDS = 60
"""The longest a healthy chat may take; none of them comes near it."""
_LIMITS = ServerLimits(
    send_queue_bytes=64 * 1024, operation_queue_bytes=64 * 1024, slow_reader_seconds=1.0
)


class Report(Struct):
    """What a run came to."""

    seconds: float
    healthy: int
    """Chats of healthy clients, each with the right result."""
    ways: Counter[str]
    """How often each way of doing wrong was gone."""
    operations: int
    """All operations that ended on the server."""
    tasks: tuple[int, int]
    """Before the vandals came, and after they had left."""
    objects: tuple[int, int]
    left: list[str]
    """What should not be there any more."""


class WrongResult(AssertionError):
    """A healthy client did not get what it asked for."""


async def soak(
    seconds: float, seed: int, directory: Path, progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Run for so many seconds on every carrier; raises `WrongResult` at the first wrong result.

    `directory` is where a unix socket may be.
    """
    engine = ScriptedEngine(slots=64)
    ended = Counter[str]()
    places = [Place(kind, directory) for kind in ENDPOINTS]
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            serve(
                engine,
                [place.endpoint for place in places],
                _LIMITS,
                [lambda record: ended.update([record.outcome])],
                server_security(),
            )
        )
        sessions: list[Session] = []
        for address in server.endpoints:
            connection = await stack.enter_async_context(
                connect(address, security=client_security())
            )
            sessions.append(await stack.enter_async_context(connection.session()))
        for session in sessions:
            await _healthy_chat(session, random.Random(seed), 0)
        found = catalogue()
        before = _standing()
        healthy, began = [0], time.monotonic()
        vandals = [Vandal(server.endpoints, found, seed + n) for n in range(VANDALS)]
        async with anyio.create_task_group() as group:
            for vandal in vandals:
                group.start_soon(vandal.run)
            for number, session in enumerate(sessions):
                group.start_soon(_healthy_client, session, seed + number, healthy)
            while time.monotonic() - began < seconds:
                await anyio.sleep(min(10.0, seconds))
                progress(
                    f"{time.monotonic() - began:.0f} s: {healthy[0]} healthy chats, "
                    f"{sum(_ways(vandals).values())} vandals, {len(asyncio.all_tasks())} tasks, "
                    f"{sum(ended.values())} operations"
                )
            group.cancel_scope.cancel()
        left = await _left(server, engine, len(sessions), before[0])
        for session in sessions:
            await _healthy_chat(session, random.Random(seed), -1)
        after = _standing()
        return Report(
            seconds=time.monotonic() - began,
            healthy=healthy[0],
            ways=_ways(vandals),
            operations=sum(ended.values()),
            tasks=(before[0], after[0]),
            objects=(before[1], after[1]),
            left=left,
        )


def _standing() -> tuple[int, int]:
    gc.collect()
    return len(asyncio.all_tasks()), len(gc.get_objects())


def _ways(vandals: list[Vandal]) -> Counter[str]:
    return sum((vandal.done for vandal in vandals), Counter[str]())


async def _left(server: Server, engine: ScriptedEngine, healthy: int, tasks: int) -> list[str]:
    """What of the vandals is still there when it had the time to go."""
    with anyio.move_on_after(_SECONDS):
        while (
            len(server.connections) > healthy
            or len(server.admission)
            or len(asyncio.all_tasks()) > tasks
        ):
            await anyio.lowlevel.checkpoint()
    counts = {
        "connections": len(server.connections) - healthy,
        "operations": len(server.admission),
        "names": len(server.directory),
        "control requests": server.admission.control_operations,
        "calls in the engine": len((await engine.queue()).operations),
    }
    left = [f"{count} {what}" for what, count in counts.items() if count]
    if len(asyncio.all_tasks()) > tasks:
        left += sorted(f"task {task.get_coro()}" for task in asyncio.all_tasks())
    return left


async def _healthy_client(session: Session, seed: int, done: list[int]) -> None:
    choose = random.Random(seed)
    number = 0
    while True:
        number += 1
        await _healthy_chat(session, choose, number)
        done[0] += 1


async def _healthy_chat(session: Session, choose: random.Random, number: int) -> None:
    """One chat of some kind, with a result that can be told exactly."""
    asked = f"question {number} {choose.random()}"
    kind = choose.choice(("stream", "whole", "cancel", "tools", "deadline"))
    with anyio.fail_after(_SECONDS):
        if kind == "cancel":
            chat = session.chat(script(text=asked, hold=True), stream=True)
            words = [getattr(await anext(chat), "delta", "") for _ in asked.split()]
            outcome = await chat.cancel()
            _right(outcome.status == "cancelled" and "".join(words) == asked, kind, outcome)
            return
        if kind == "tools":
            call = {"name": "lookup", "arguments": f'{{"q": "{asked}"}}'}
            outcome = await session.chat(script(tool_calls=[call]), stream=True).result()
            calls = (outcome.body or {})["choices"][0]["message"]["tool_calls"]
            _right(calls[0]["function"]["arguments"] == call["arguments"], kind, outcome)
            return
        limit = time.time() + 3600 if kind == "deadline" else None
        outcome = await session.chat(body(asked), stream=kind == "stream", deadline=limit).result()
        _right(outcome.text == f"You said: {asked}", kind, outcome)


def _right(holds: bool, kind: str, outcome: object) -> None:
    if not holds:
        raise WrongResult(f"{kind}: {outcome}")
