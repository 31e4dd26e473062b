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

import anyio
import anyio.lowlevel
from msgspec import Struct

from nnrp_sched.client import Session, connect
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.server import ServerLimits, serve
from nnrp_sched.transport import parse_endpoint
from tests.soak.vandals import Vandal, catalogue
from tests.support.serving import body, script

VANDALS = 6
HEALTHY = 3
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
    seconds: float, seed: int, progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Run for so many seconds; raises `WrongResult` at the first wrong result."""
    engine = ScriptedEngine(slots=64)
    ended = Counter[str]()
    found = catalogue()
    endpoint = parse_endpoint("nnrp://127.0.0.1:0")
    async with serve(
        engine, [endpoint], _LIMITS, observers=[lambda record: ended.update([record.outcome])]
    ) as server:
        address = server.endpoints[0]
        async with connect(address) as connection, connection.session() as session:
            await _healthy_chat(session, random.Random(seed), 0)
            gc.collect()
            tasks, objects = len(asyncio.all_tasks()), len(gc.get_objects())
            vandals = [Vandal(address, found, seed + number) for number in range(VANDALS)]
            healthy = [0]
            began = time.monotonic()
            async with anyio.create_task_group() as group:
                for vandal in vandals:
                    group.start_soon(vandal.run)
                for number in range(HEALTHY):
                    group.start_soon(_healthy_client, session, seed + number, healthy)
                while time.monotonic() - began < seconds:
                    await anyio.sleep(min(10.0, seconds))
                    done = sum((vandal.done for vandal in vandals), Counter[str]())
                    progress(
                        f"{time.monotonic() - began:.0f} s: {healthy[0]} healthy chats, "
                        f"{sum(done.values())} vandals, {len(asyncio.all_tasks())} tasks, "
                        f"{sum(ended.values())} operations"
                    )
                group.cancel_scope.cancel()
            left: list[str] = []
            with anyio.move_on_after(_SECONDS):
                while len(server.connections) > 1 or len(server.admission):
                    await anyio.lowlevel.checkpoint()
            if len(server.connections) > 1:
                left.append(f"{len(server.connections) - 1} connections")
            if len(server.admission) or len(server.directory):
                left.append(f"{len(server.admission)} operations")
            if server.admission.control_operations:
                left.append(f"{server.admission.control_operations} control requests")
            if (await engine.queue()).operations:
                left.append("calls in the engine")
            await _healthy_chat(session, random.Random(seed), -1)
            gc.collect()
            return Report(
                seconds=time.monotonic() - began,
                healthy=healthy[0],
                ways=sum((vandal.done for vandal in vandals), Counter[str]()),
                operations=sum(ended.values()),
                tasks=(tasks, len(asyncio.all_tasks())),
                objects=(objects, len(gc.get_objects())),
                left=left,
            )


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
