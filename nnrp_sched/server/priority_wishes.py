"""Changes of one operation's priority, of which only the last counts."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from anyio.abc import TaskGroup

from nnrp_sched.server.cancellation import is_our_cancellation
from nnrp_sched.server.engine_calls import EngineCall

logger = logging.getLogger(__name__)

_REFUSALS: Final = frozenset({"policy_fcfs", "unsupported"})
"""Reasons why an engine will never change a priority."""


class PriorityWishes:
    """Asks the engine one at a time, whatever comes meanwhile."""

    def __init__(self, call: EngineCall, name: str) -> None:
        """`name` is the operation's id as users see it."""
        self._call = call
        self._name = name
        self._priority = 0
        self._updating = False

    def update(self, priority: int, refused: Callable[[str], None], tasks: TaskGroup) -> None:
        """Ask for a priority; `refused` is told when the engine never changes any."""
        self._priority = priority
        if not self._updating:
            self._updating = True
            tasks.start_soon(self._ask, refused)

    async def _ask(self, refused: Callable[[str], None]) -> None:
        try:
            wished: int | None = None
            while wished != self._priority:
                wished = self._priority
                done = await self._call.reprioritize(wished)
                if done.reason in _REFUSALS:
                    refused(done.reason)
        except (Exception, asyncio.CancelledError) as error:
            # The engine's code: a wish that it fails over must not end the operation.
            if is_our_cancellation(error):
                raise
            logger.exception("operation %s: its priority could not be changed", self._name)
            refused("failed")
        finally:
            self._updating = False
