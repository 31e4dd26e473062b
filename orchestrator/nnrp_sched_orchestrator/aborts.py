"""Aborts, gathered: all that are asked for in one turn of the loop go out as one request."""

from collections.abc import Iterable
from typing import Final

import anyio
import anyio.lowlevel

from nnrp_sched.client import Session
from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile.control_bodies import MAX_IDS
from nnrp_sched.profile.scheduling import AbortReceipt

_CLOSED: Final = "the pool was closed"


class _Batch:
    """What is asked of one server together."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.receipts: dict[str, AbortReceipt] = {}
        self.failure: str | None = None
        """Why some have no receipt."""
        self.done = anyio.Event()


class Aborts:
    """The aborts of a pool. `run` sends them."""

    def __init__(self, seconds: float) -> None:
        """A server has so many seconds to answer a request."""
        self._seconds = seconds
        self._pending: dict[Session, _Batch] = {}
        self._wanted = anyio.Event()
        self._closed = False

    async def ask(
        self, control: Session, names: Iterable[str], seconds: float
    ) -> tuple[dict[str, AbortReceipt], str | None]:
        """End operations by their names; waits no longer than `seconds`.

        Gives the receipts that came, and why others did not.
        """
        wanted = list(names)
        if self._closed:
            return {}, _CLOSED
        batch = self._pending.get(control)
        if batch is None:
            batch = self._pending[control] = _Batch()
        batch.names.update(dict.fromkeys(wanted))
        self._wanted.set()
        with anyio.move_on_after(seconds):
            await batch.done.wait()
        receipts = {name: batch.receipts[name] for name in wanted if name in batch.receipts}
        if len(receipts) == len(set(wanted)):
            return receipts, None
        return receipts, batch.failure or f"the server has not answered in {seconds:g} s"

    async def run(self) -> None:
        """Send what is asked for, until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    await self._wanted.wait()
                    # Of streams that are cancelled together some notice it a turn later.
                    await anyio.lowlevel.checkpoint()
                    pending, self._pending = self._pending, {}
                    self._wanted = anyio.Event()
                    for control, batch in pending.items():
                        tasks.start_soon(self._send, control, batch)
        finally:
            self._closed = True
            for batch in self._pending.values():
                batch.failure = _CLOSED
                batch.done.set()

    async def _send(self, control: Session, batch: _Batch) -> None:
        try:
            with anyio.move_on_after(self._seconds) as limit:
                async with anyio.create_task_group() as tasks:
                    for ids in _pieces(batch.names):
                        tasks.start_soon(self._request, control, batch, ids)
            if limit.cancelled_caught:
                batch.failure = f"the server has not answered in {self._seconds:g} s"
        finally:
            batch.done.set()

    async def _request(self, control: Session, batch: _Batch, ids: list[str]) -> None:
        try:
            for receipt in await control.abort_operations(ids):
                batch.receipts[receipt.request_id] = receipt
        except NnrpSchedError as error:
            batch.failure = str(error)


def _pieces(names: Iterable[str]) -> list[list[str]]:
    """The names in pieces that one request can have."""
    every = list(names)
    return [every[start : start + MAX_IDS] for start in range(0, len(every), MAX_IDS)]
