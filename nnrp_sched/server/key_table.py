"""The calls with an idempotency key: those that run, and for a while those that have ended.

A key means something only to the principal that chose it, and only for one body. An operation with
a known key gets the answer that is there, or comes, for it; the engine is not called again. Only
answers are kept for a retry: a failure, and an answer that somebody has cut short, is forgotten at
once, because trying again is what a retry is for.

Everything is bounded by `ServerLimits`: entries, bytes and seconds. When all entries of a principal
(or of the server) are in use, an operation with a further key is refused as one to be tried again
later. Running it without remembering its key would break the promise that the key stands for.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import msgspec

from nnrp_sched.engine.port import Engine
from nnrp_sched.engine.records import ChatBody
from nnrp_sched.profile import profile_error
from nnrp_sched.profile.workflow import IDEMPOTENCY_KEY
from nnrp_sched.server.admission import Admission
from nnrp_sched.server.attached_call import AttachedCall
from nnrp_sched.server.limits import ServerLimits
from nnrp_sched.server.shared_call import SharedCall

logger = logging.getLogger(__name__)

_MEMBER = f"`nnrp.{IDEMPOTENCY_KEY}`"


class _Shelf:
    """What one principal has in the table."""

    __slots__ = ("calls", "count", "remembered", "size")

    def __init__(self) -> None:
        self.calls: dict[str, SharedCall] = {}
        """By key: the calls that may be joined."""
        self.remembered: dict[SharedCall, None] = {}
        """Those of them that have ended, the oldest first."""
        self.count = 0
        """Calls that take room, also those that cannot be joined any more."""
        self.size = 0
        """Bytes of their answers."""


class KeyTable:
    """The keyed calls of one server."""

    def __init__(self, engine: Engine, admission: Admission, limits: ServerLimits) -> None:
        self._engine = engine
        self._admission = admission
        self._limits = limits
        self._shelves: dict[str, _Shelf] = {}
        self._places: dict[SharedCall, tuple[str, str]] = {}
        """Every call that takes room, with its principal and key."""
        self._remembered: dict[SharedCall, float] = {}
        """Those that have ended, the oldest first, and when they are forgotten."""
        self._by_name: dict[str, SharedCall] = {}
        """Those the engine has, by the id under which it shows them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._size = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def kept_bytes(self) -> int:
        """Bytes of all answers."""
        return self._size

    @property
    def task_count(self) -> int:
        """Tasks of the table's own that run now."""
        return len(self._tasks)

    def operations(self, name: str) -> list[str]:
        """The operations, by the ids users see, behind a call that the engine shows as `name`."""
        call = self._by_name.get(name)
        return [] if call is None else call.operations

    def attach(
        self, principal: str, key: str, body: ChatBody, *, request_id: str, operation: str
    ) -> AttachedCall:
        """The part of a new operation in the call of its key; close it once the operation is over.

        `operation` is the id users see. Raises `ProfileError`: `invalid_nnrp_policy` for a key that
        another body has, `adapter_operation_limit` when there is no room for a further key,
        `scheduler_rejected` when the beginning of the answer was too long to be kept.
        """
        digest = hashlib.sha256(msgspec.json.encode(body, order="deterministic")).digest()
        shelf = self._shelves.get(principal)
        call = None if shelf is None else shelf.calls.get(key)
        if call is None:
            call = self._new(principal, key, digest)
        elif call.digest != digest:
            raise profile_error(
                "invalid_nnrp_policy",
                f"{_MEMBER} stands for another body; a key may be used again only for the request "
                "that it was first used for",
            )
        elif not call.replay.whole:
            # Not for lack of room: who comes again only later would have it run a second time.
            raise profile_error(
                "scheduler_rejected",
                f"the operation of this {_MEMBER} still runs, and has said more than is kept "
                f"({self._limits.key_answer_bytes} bytes at most); retry once it has ended",
            )
        else:
            logger.info("operation %s joins the call of its key", operation)
        return AttachedCall(call, request_id, operation)

    def _new(self, principal: str, key: str, digest: bytes) -> SharedCall:
        limits, shelf = self._limits, self._shelves.get(principal)
        if shelf is not None and shelf.count >= limits.max_keys_per_principal:
            self._make_room(shelf.remembered, limits.max_keys_per_principal, "of one client")
        if len(self._places) >= limits.max_keys:
            self._make_room(self._remembered, limits.max_keys, "of all clients")
        shelf = self._shelves.setdefault(principal, _Shelf())
        call = SharedCall(self._engine, self._admission, limits, self, digest)
        shelf.calls[key] = call
        shelf.count += 1
        self._places[call] = (principal, key)
        return call

    def _make_room(self, remembered: dict[SharedCall, Any], bound: int, whose: str) -> None:
        oldest = next(iter(remembered), None)
        if oldest is None:
            raise profile_error(
                "adapter_operation_limit",
                f"{bound} operations {whose} with {_MEMBER} run at once, and no more may; retry "
                "later",
            )
        self._discard(oldest)

    # --- what the calls say (`shared_call.Keeper`) ------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until the table is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def called(self, call: SharedCall) -> None:
        """The engine has the call."""
        assert call.own is not None
        self._by_name[call.own.name] = call

    def resized(self, call: SharedCall, change: int) -> None:
        """More or fewer bytes of its answer are kept; when they are too many, others give way."""
        principal, _ = self._places[call]
        shelf = self._shelves[principal]
        shelf.size += change
        self._size += change
        self._fit(call, shelf.remembered, lambda: shelf.size, self._limits.key_bytes_per_principal)
        self._fit(call, self._remembered, lambda: self._size, self._limits.key_bytes)

    def _fit(
        self,
        call: SharedCall,
        remembered: dict[SharedCall, Any],
        size: Callable[[], int],
        bound: int,
    ) -> None:
        while size() > bound and remembered:
            self._discard(next(iter(remembered)))
        if size() > bound:
            call.replay.give_up()

    def forget(self, call: SharedCall) -> None:
        """Nobody may join it any more; it takes its room as long as it runs."""
        principal, key = self._places[call]
        self._shelves[principal].calls.pop(key, None)

    def over(self, call: SharedCall) -> None:
        """It has ended: its answer is kept for a while, if it is one."""
        if call.own is not None:
            self._by_name.pop(call.own.name, None)
        good = call.failure is None and not call.cut_short and not call.dying
        if not good or not call.replay.whole or self._admission.draining:
            self._discard(call)
            return
        loop = asyncio.get_running_loop()
        principal, _ = self._places[call]
        self._shelves[principal].remembered[call] = None
        self._remembered[call] = loop.time() + self._limits.key_seconds
        if self._timer is None:
            self._timer = loop.call_later(self._limits.key_seconds, self._expire)

    # --- the end ----------------------------------------------------------------------------------

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._remembered:
            call, until = next(iter(self._remembered.items()))
            if until > loop.time():
                self._timer = loop.call_at(until, self._expire)
                return
            self._discard(call)

    def _discard(self, call: SharedCall) -> None:
        """Forget a call; whoever still reads its answer keeps it as long."""
        principal, key = self._places.pop(call)
        shelf = self._shelves[principal]
        if shelf.calls.get(key) is call:
            del shelf.calls[key]
        shelf.remembered.pop(call, None)
        self._remembered.pop(call, None)
        shelf.count -= 1
        shelf.size -= call.replay.size
        self._size -= call.replay.size
        if not shelf.count:
            del self._shelves[principal]

    async def aclose(self) -> None:
        """End what still runs without a caller, and forget everything."""
        for call in list(self._places):
            if call.ended:
                self._discard(call)
            else:
                call.abandon()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with anyio.move_on_after(self._limits.abort_seconds + 1):
            while self._tasks:
                await asyncio.wait(self._tasks)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
