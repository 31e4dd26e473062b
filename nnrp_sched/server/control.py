"""`nnrp-sched-control/1`: this project's own requests, on the same wire mapping as the profile.

Level 1 of the profile never depends on them (design, decision 10).
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import anyio
import msgspec

from nnrp_sched.engine.port import Engine
from nnrp_sched.engine.records import QueueSnapshot
from nnrp_sched.profile import (
    CONTROL_SCHEMA,
    ControlRequest,
    Extension,
    capability_document,
    encode_event,
)
from nnrp_sched.profile.control_bodies import (
    AbortBody,
    Nothing,
    ProgramBody,
    ReprioritizeBody,
    WatchBody,
    parse_body,
)
from nnrp_sched.profile.events import QueueChanged
from nnrp_sched.profile.workflow import IDEMPOTENCY_KEY, PRIORITY, WORKFLOW
from nnrp_sched.server.desk import Desk
from nnrp_sched.server.priority import takes_priorities
from nnrp_sched.server.terminal import OperationChannel

Answer = Callable[[Desk, Any], Awaitable[dict[str, Any]]]


def capabilities(engine: Engine, further: Iterable[Extension] = ()) -> dict[str, Any]:
    """The capability document of what `engine` serves, as plain JSON values.

    `further` are the extensions that do not come from the engine.
    """
    description = engine.description
    prioritized = takes_priorities(description)
    document = capability_document(
        description.models,
        tool_calls=description.tool_calls,
        extensions=[*(each for each, needs in _EXTENSIONS if prioritized or not needs), *further],
        max_model_len=description.max_model_len,
    )
    return document.to_builtins()


async def _capabilities(desk: Desk, _body: Nothing) -> dict[str, Any]:
    return capabilities(desk.engine, desk.extensions)


async def _snapshot(desk: Desk, _body: Nothing) -> dict[str, Any]:
    return dict(msgspec.to_builtins(await desk.queue()))


async def _abort(desk: Desk, body: AbortBody) -> dict[str, Any]:
    return {"receipts": msgspec.to_builtins(await desk.abort(body))}


async def _cancel_program(desk: Desk, body: ProgramBody) -> dict[str, Any]:
    return await _abort(desk, AbortBody(program=body.program))


async def _reprioritize(desk: Desk, body: ReprioritizeBody) -> dict[str, Any]:
    return dict(msgspec.to_builtins(await desk.reprioritize(body.id, body.priority)))


async def watch(desk: Desk, body: WatchBody, channel: OperationChannel, seconds: float) -> None:
    """Send the queue whenever it has changed, until cancelled or the peer reads too slowly.

    A peer that reads slowly misses snapshots, never gets stale ones. Raises `TimeoutError` when the
    engine takes longer than `seconds` for one.
    """
    sent: QueueSnapshot | None = None
    while True:
        if channel.waiting and not await channel.flushed():
            return
        with anyio.fail_after(seconds):
            snapshot = await desk.queue()
        timeless = msgspec.structs.replace(snapshot, taken_ms=0.0)
        if timeless != sent:
            channel.send_partial(encode_event(QueueChanged(snapshot)))
            sent = timeless
        await anyio.sleep(1 / body.per_second)


WATCH: Final = "queue.watch"
"""The one operation that streams."""

_ANSWERS: Final[dict[str, tuple[type[Any], Answer]]] = {
    "capabilities.get": (Nothing, _capabilities),
    "queue.snapshot": (Nothing, _snapshot),
    "operation.abort": (AbortBody, _abort),
    "program.cancel": (ProgramBody, _cancel_program),
    "operation.reprioritize": (ReprioritizeBody, _reprioritize),
}
"""What can be asked, the body it takes, and what answers it."""

OPERATIONS: Final = frozenset(_ANSWERS) | {WATCH}

_EXTENSIONS: Final = (
    (
        Extension(
            name=CONTROL_SCHEMA,
            critical=False,
            description="requests of nnrp-sched: " + ", ".join(sorted(OPERATIONS)),
        ),
        False,
    ),
    (
        Extension(
            name=f"nnrp.{WORKFLOW}",
            critical=False,
            description="who asks: program, agent, parent, step, role, deadline_ms, budget_tokens",
        ),
        False,
    ),
    (
        Extension(
            name="nnrp.diagnostics",
            critical=False,
            description="with true, a response.diagnostics event before the terminal",
        ),
        False,
    ),
    (
        Extension(
            name=f"nnrp.{IDEMPOTENCY_KEY}",
            critical=False,
            description="a text by which a retry of the same request attaches to the operation "
            "that runs, or gets the outcome of one that has just ended",
        ),
        False,
    ),
    (
        Extension(
            name=f"nnrp.{PRIORITY}",
            critical=False,
            description="the engine's priority of an operation, lower is sooner; session classes, "
            "PRIORITY_UPDATE and operation.reprioritize work too",
        ),
        True,
    ),
)
"""Each extension, and whether it needs an engine that orders its queue by priority."""


def prepared(request: ControlRequest) -> Any:
    """The body of a request, read; raises `ProfileError` for one it cannot have."""
    kind = WatchBody if request.operation == WATCH else _ANSWERS[request.operation][0]
    return parse_body(request.body, kind)


async def answer(desk: Desk, request: ControlRequest, body: Any) -> dict[str, Any]:
    """The body of the terminal that answers a request other than `queue.watch`."""
    return await _ANSWERS[request.operation][1](desk, body)
