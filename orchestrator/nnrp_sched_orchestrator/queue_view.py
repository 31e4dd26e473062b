"""A view of one server's queue, kept up to date while somebody asks."""

import time
from collections.abc import Callable
from contextlib import aclosing
from itertools import islice
from typing import Final

import anyio

from nnrp_sched.client import Session
from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile.scheduling import QueuedRequest, QueueSnapshot
from nnrp_sched_orchestrator.backoff import Backoff

_MOST_ROWS: Final = 8192
"""Requests of a snapshot that are looked at; a server of ours runs 4,096."""


class QueueView:
    """The latest snapshot of a server's queue. It watches by one request, and only when asked."""

    def __init__(
        self,
        *,
        per_second: float,
        seconds: float,
        backoff: Callable[[], Backoff],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take so many snapshots a second, until `seconds` after somebody last asked.

        `backoff` says when to watch again after a failure.
        """
        self._per_second = per_second
        self._seconds = seconds
        self._backoff = backoff
        self._clock = clock
        self._asked = 0.0
        self._wanted = anyio.Event()
        self._rows: dict[str, QueuedRequest] = {}
        self.failure: str | None = None
        """Why there is no view, when the server refused it."""

    @property
    def watching(self) -> bool:
        """Whether somebody has asked not long ago."""
        return self._wanted.is_set()

    def place(self, name: str) -> QueuedRequest | None:
        """Where an operation stands; asking keeps the view going."""
        self._asked = self._clock()
        self._wanted.set()
        return self._rows.get(name)

    async def serve(self, control: Session) -> None:
        """Watch by this session whenever somebody asks, until cancelled or the session is lost."""
        backoff = self._backoff()
        while control.lost is None:
            await self._wanted.wait()
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._until_nobody_asks, tasks.cancel_scope)
                    await self._watch(control, backoff)
                    tasks.cancel_scope.cancel()
            finally:
                self._rows = {}
            if self.failure is not None:
                await anyio.sleep(backoff.next())

    async def _watch(self, control: Session, backoff: Backoff) -> None:
        self.failure = None
        try:
            async with aclosing(control.watch_queue(per_second=self._per_second)) as snapshots:
                async for snapshot in snapshots:
                    self._take(snapshot)
                    backoff.reset()
        except NnrpSchedError as error:
            self.failure = str(error)

    def _take(self, snapshot: QueueSnapshot) -> None:
        self._rows = {row.id: row for row in islice(snapshot.operations, _MOST_ROWS)}

    async def _until_nobody_asks(self, watching: anyio.CancelScope) -> None:
        while True:
            left = self._asked + self._seconds - self._clock()
            if left <= 0:
                break
            await anyio.sleep(left)
        self._wanted = anyio.Event()
        watching.cancel()
