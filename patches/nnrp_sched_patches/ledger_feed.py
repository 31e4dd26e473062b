"""Keeps a ledger up with the scheduler: long-polls its transitions, takes stock after a loss."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import msgspec
from msgspec import Struct

from nnrp_sched_patches.channel import EngineGone, EngineRefused, EngineSilent, call_engine
from nnrp_sched_patches.frontend import now_ms
from nnrp_sched_patches.ledger import Ledger

_LOGGER = logging.getLogger(__name__)

POLL = "nnrp_poll"
STATE = "nnrp_state"

_POLL_S = 10.0
"""How long the engine may keep a poll open without news."""
_GRACE_S = 30.0
"""How long after that an answer may still come: the engine answers between two steps."""
_GATHER_S = 0.02
"""News of so long come in one answer: the engine's thread takes each poll between two steps."""
_PAUSE_S = 0.5
_STATE_WAIT_S = 5.0
_EVENTS = 1024
"""Transitions in one answer at most."""


class Polled(Struct, frozen=True):
    """An answer of `nnrp_poll`."""

    seq: int
    """What to ask with next."""
    events: list[tuple[int, str, str, int, dict[str, Any] | None]]
    """Sequence number, kind, internal id, monotonic ns, and what more the kind tells."""
    dropped: int
    """Transitions since the last answer that were too many to keep."""


async def take_stock(engine: Any, ledger: Ledger, *, wait_s: float = _STATE_WAIT_S) -> None:
    """Ask the scheduler where the live parts stand.

    Raises as `call_engine` does, or msgspec.ValidationError.
    """
    parts = [part for entry in ledger.live for part in entry.live_parts]
    if not parts:
        return
    wanted = {"ids": [part.internal_id for part in parts]}
    try:
        reply = await call_engine(engine, STATE, wanted, wait_s=wait_s)
        ledger.engine_states(msgspec.convert(reply.get("requests"), dict[str, dict[str, Any]]))
    except EngineGone as error:
        ledger.engine_died(str(error), now_ms())
        raise


async def follow(
    engine: Any,
    ledger: Ledger,
    *,
    poll_s: float = _POLL_S,
    pause_s: float = _PAUSE_S,
    gather_s: float = _GATHER_S,
) -> None:
    """Tell `ledger` every transition in `engine`'s scheduler; ends when the engine dies.

    `engine` is an AsyncLLM. After news the next poll waits for `gather_s` seconds; a failed one is
    repeated after `pause_s`, and what it may have lost is made up for by taking stock.
    """
    since, lost, troubled = 0, False, False
    while True:
        try:
            if lost:
                await take_stock(engine, ledger)
            wanted = {
                "since": since,
                "max": _EVENTS,
                "wait_s": poll_s,
                "client": engine.engine_core.client_index,
            }
            reply = await call_engine(engine, POLL, wanted, wait_s=poll_s + _GRACE_S)
            polled = msgspec.convert(reply, Polled)
            for _, kind, internal_id, at_ns, extra in polled.events:
                ledger.event(kind, internal_id, at_ns / 1e6, extra or {})
            since = polled.seq
            lost = bool(polled.dropped)
            troubled = False
            if polled.events:
                await anyio.sleep(gather_s)
        except EngineGone as error:
            ledger.engine_died(str(error), now_ms())
            return
        except (EngineSilent, EngineRefused, msgspec.ValidationError) as error:
            if not troubled:
                _LOGGER.warning("the engine's transitions are not coming: %s", error)
            lost = troubled = True
            await anyio.sleep(pause_s)


@contextlib.asynccontextmanager
async def followed(engine: Any, ledger: Ledger) -> AsyncGenerator[None, None]:
    """`follow` while the context is open."""
    # A plain task: a task group would wrap every error of the caller's block in a group.
    task = asyncio.create_task(follow(engine, ledger), name="nnrp-sched ledger feed")
    task.add_done_callback(_report)
    try:
        yield
    finally:
        task.cancel()


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _LOGGER.error("the ledger is no longer fed", exc_info=task.exception())
