"""Tells the engine what users call a frontend's requests, where other frontends share that engine.

So that each of them can stop the others' by the ids, programs and agents that users see. With one
frontend there is nobody to tell.
"""

import asyncio
import logging
import weakref
from typing import Any, Final

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_patches.channel import call_engine
from nnrp_sched_patches.ledger_records import Entry

_LOGGER = logging.getLogger(__name__)

TELL = "nnrp_tell"

MOST_UNTOLD: Final = 4096
"""Requests beyond so many that wait to be told are known elsewhere by vLLM's external id only."""
_WAIT_S = 30.0


class Teller:
    """What one frontend has to tell; one call at a time, with all that came up meanwhile."""

    def __init__(self) -> None:
        self._untold: dict[str, dict[str, str | None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._warned = False

    def tell(self, engine: Any, entry: Entry) -> None:
        """Tell soon what `entry` is called; `engine` is the AsyncLLM that has its parts."""
        caller = entry.caller
        called = {"id": entry.id, "program": caller.program, "agent": caller.agent}
        for part in entry.live_parts:
            if len(self._untold) < MOST_UNTOLD:
                self._untold[part.internal_id] = called
        if self._untold and self._task is None:
            self._task = asyncio.create_task(self._send(engine), name="nnrp-sched tell")

    async def _send(self, engine: Any) -> None:
        try:
            while self._untold:
                requests, self._untold = self._untold, {}
                await call_engine(engine, TELL, {"requests": requests}, wait_s=_WAIT_S)
        except NnrpSchedError as error:
            self._untold = {}
            if not self._warned:
                self._warned = True
                _LOGGER.warning("other API servers know requests by vLLM's ids only: %s", error)
        finally:
            self._task = None


_tellers: "weakref.WeakKeyDictionary[Any, Teller]" = weakref.WeakKeyDictionary()


def shared(engine: Any) -> bool:
    """Whether other frontends use the same engine."""
    return bool(engine.engine_core.client_count > 1)


def tell(engine: Any, entry: Entry) -> None:
    """Tell the engine soon what a request is called, if anybody else is there to hear of it."""
    if shared(engine):
        teller = _tellers.get(engine)
        if teller is None:
            teller = _tellers[engine] = Teller()
        teller.tell(engine, entry)
