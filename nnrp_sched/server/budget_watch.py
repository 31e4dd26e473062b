"""Watches whether an operation has spent its budget of output tokens."""

from collections.abc import Callable
from typing import Final

import anyio
from anyio.abc import TaskGroup

from nnrp_sched.server.budget import changed
from nnrp_sched.wire import BudgetUpdate

_SECONDS: Final = 0.02
"""How often the engine is asked: not every token comes as an event."""


class BudgetWatch:
    """Counts only while there is a budget."""

    def __init__(self, count: Callable[[], int | None], spent: Callable[[], None]) -> None:
        """`count` gives the tokens so far, as far as known; `spent` is called once they are."""
        self._count = count
        self._spent = spent
        self._limit: int | None = None
        self._tasks: TaskGroup | None = None
        self._watching = False
        self._over = False

    def start(self, tasks: TaskGroup) -> None:
        """The operation runs from now on, and whatever it needs in `tasks`."""
        self._tasks = tasks
        self._watch()

    def update(self, wish: BudgetUpdate) -> None:
        """BUDGET_UPDATE: another limit."""
        self._limit = changed(self._limit, wish)
        self._watch()

    def check(self) -> None:
        """Count now."""
        if self._limit is None or self._over:
            return
        tokens = self._count()
        if tokens is not None and tokens >= self._limit:
            self._over = True
            self._spent()

    def _watch(self) -> None:
        if self._limit is not None and self._tasks is not None and not self._watching:
            self._watching = True
            self._tasks.start_soon(self._run)

    async def _run(self) -> None:
        while self._limit is not None and not self._over:
            self.check()
            await anyio.sleep(_SECONDS)
        self._watching = False
