"""An engine call that several operations may have a part in, because they have one key.

The engine is called once, by a task of the call's own. Every operation reads the answer at its own
pace, from the beginning. The call is ended in the engine when nobody wants it any more: at once
when its last operation was ended, after a grace when the connection was lost, since the peer is
then likely to ask again.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, Final, Protocol

import anyio
import msgspec

from nnrp_sched.engine.port import Engine
from nnrp_sched.engine.records import AbortReceipt, ChatBody, ChatCall, RequestState, ServedCall
from nnrp_sched.errors import BackendError
from nnrp_sched.server.admission import Admission
from nnrp_sched.server.cancellation import is_our_cancellation
from nnrp_sched.server.ending import Ending
from nnrp_sched.server.engine_calls import OwnCall, ask_abort
from nnrp_sched.server.limits import ServerLimits
from nnrp_sched.server.replay import Replay
from nnrp_sched.server.seat import Seat

logger = logging.getLogger(__name__)

_AHEAD_BYTES: Final = 64 * 1024
"""What is read of the engine ahead of the slowest operation, once the beginning is not kept."""


class Keeper(Protocol):
    """Keeps the calls by their keys."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that no operation owns."""
        ...

    def called(self, call: "SharedCall") -> None:
        """The engine has the call."""
        ...

    def resized(self, call: "SharedCall", change: int) -> None:
        """More or fewer bytes of the answer are kept."""
        ...

    def forget(self, call: "SharedCall") -> None:
        """Nobody may join the call any more."""
        ...

    def over(self, call: "SharedCall") -> None:
        """The engine is through with the call, or never had it."""
        ...


class SharedCall:
    """One call of the engine and the operations that read its answer."""

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        limits: ServerLimits,
        keeper: Keeper,
        digest: bytes,
    ) -> None:
        """`digest` is that of the body it was made with."""
        self.digest = digest
        self.replay = Replay(limits.key_answer_bytes)
        self.own: OwnCall | None = None
        """The engine's call, once it was made."""
        self.ended = False
        """Whether the engine is through with it."""
        self.dying = False
        """Whether nobody wants it, so that it ends, or has ended, otherwise than by itself."""
        self.failure: BaseException | None = None
        self.cut_short = False
        """Whether the engine says that somebody has aborted it."""
        self._seats: dict[Seat, None] = {}
        self._engine = engine
        self._admission = admission
        self._limits = limits
        self._keeper = keeper
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """The end of the grace, or of the time that the engine has for an abort."""
        self._state: RequestState | None = None
        """Where the scheduler said that it stands."""
        self._news = anyio.Event()
        self._room = anyio.Event()

    @property
    def live(self) -> OwnCall | None:
        """The engine's call while the engine has it."""
        return None if self.ended else self.own

    @property
    def operations(self) -> list[str]:
        """The operations that want the answer, by the ids users see, in the order they came."""
        return [seat.operation for seat in self._seats if seat.wants]

    # --- operations come and go -------------------------------------------------------------------

    def join(self, operation: str) -> Seat:
        """An operation wants the answer."""
        self._stop_timer()
        seat = Seat(operation)
        self._seats[seat] = None
        return seat

    def call(self, call: ChatCall, seat: Seat) -> None:
        """The seat's operation asks for the answer: the first one to do so calls the engine."""
        seat.moved, seat.served = call.moved, call.served
        if self.own is None:
            shared = msgspec.structs.replace(call, moved=self._moved, served=self._served)
            self._admission.hold(call.request_id)
            self.own = OwnCall(self._engine, call.request_id, call.visible_id)
            self._keeper.called(self)
            self._task = self._keeper.spawn(self._run(shared))
            self._task.add_done_callback(self._over)
        elif seat.moved is not None and self._state is not None and not self.ended:
            seat.moved(self._state)

    async def next(self, seat: Seat) -> bytes | None:
        """The next part of the answer; None at the end, also where the operation left.

        Raises what ended the call in the engine.
        """
        while True:
            if seat.end is not None and seat.position >= seat.end:
                return None
            if seat.position < self.replay.end:
                break
            if self.ended:
                if self.failure is not None:
                    raise self.failure
                return None
            await self._news.wait()
        part = self.replay[seat.position]
        seat.position += 1
        self._room.set()
        return part

    def goes_on_without(self, seat: Seat, ending: Ending) -> bool:
        """Whether the call goes on when this operation ends so."""
        if self.ended or any(each.wants for each in self._seats if each is not seat):
            return True
        return ending is Ending.LOST and self._has_grace

    def receipt(self, operation: str) -> AbortReceipt:
        """What is told to an operation that ends while the call goes on, or has ended."""
        tokens = None if self.live is None else self.live.tokens()
        state: RequestState = "finished" if self.ended else self._state or "admitting"
        authoritative = self.ended or self._state is not None
        return AbortReceipt(operation, state, False, authoritative, tokens, 0.0)

    def leave(self, seat: Seat, ending: Ending) -> None:
        """The operation ends, for this reason, and wants no more than there is."""
        if not seat.wants:
            return
        goes_on = self.goes_on_without(seat, ending)
        seat.end = self.replay.end
        self._tell()
        if not goes_on:
            self.abandon()
        elif not self.operations and not self.ended:
            logger.info("request %s lost its last caller", self.own and self.own.request_id)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._limits.key_grace_seconds, self.abandon)

    def remove(self, seat: Seat) -> None:
        """The operation reads no more, however it ended."""
        self.leave(seat, Ending.SESSION)
        self._seats.pop(seat, None)
        self._room.set()
        if self.dying and not self._seats and self._task is not None:
            self._task.cancel()

    # --- the end ----------------------------------------------------------------------------------

    def die(self) -> None:
        """Nobody wants it; whoever says so asks the engine to end it."""
        if self.dying or self.ended:
            return
        self.dying = True
        self._stop_timer()
        self._keeper.forget(self)
        if self._task is None:
            self._keeper.over(self)
        else:
            # As long for the abort, and again for what was produced until then.
            seconds = 2 * self._limits.abort_seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self._task.cancel)

    def abandon(self) -> None:
        """Nobody wants it, and nobody is there to ask the engine."""
        if self.dying or self.ended:
            return
        self.die()
        if self.own is not None:
            self._keeper.spawn(self._abort(self.own))

    async def _abort(self, own: OwnCall) -> None:
        await ask_abort(own, Ending.LOST, self._limits.abort_seconds)
        if self._task is not None:
            self._task.cancel()

    def _over(self, task: asyncio.Task[None]) -> None:
        """The engine is through, the task gone."""
        assert self.own is not None
        self.failure = (
            BackendError("the engine did not end the call", status=500)
            if task.cancelled()
            else task.exception()
        )
        self.ended = True
        self._stop_timer()
        self._tell()
        self._admission.release(self.own.request_id)
        self._keeper.over(self)

    # --- the engine -------------------------------------------------------------------------------

    async def _run(self, call: ChatCall) -> None:
        try:
            if call.body.get("stream") is True:
                async with aclosing(self._engine.stream(call)) as chunks:
                    async for chunk in chunks:
                        self._add(chunk)
                        await self._wait_for_readers()
            else:
                self._add(await self._engine.complete(call))
        except asyncio.CancelledError as error:
            if is_our_cancellation(error):
                raise
            raise RuntimeError("the engine cancelled its call by itself") from error

    def _add(self, part: ChatBody) -> None:
        before = self.replay.size
        self.replay.append(msgspec.json.encode(part))
        self._keeper.resized(self, self.replay.size - before)
        self._tell()

    async def _wait_for_readers(self) -> None:
        """Let nobody fall behind what is kept."""
        while not self.replay.whole:
            self._trim()
            if self.replay.size <= _AHEAD_BYTES:
                return
            self._room = anyio.Event()
            await self._room.wait()

    def _trim(self) -> None:
        """Drop what everybody has read; without its beginning the call takes nobody in."""
        before = self.replay.size
        positions = [seat.position for seat in self._seats]
        self.replay.drop_before(min(positions, default=self.replay.end))
        self._keeper.resized(self, self.replay.size - before)
        if not self.operations:
            self.abandon()

    def _moved(self, state: RequestState) -> None:
        self._state = state
        for seat in self._seats:
            if seat.moved is not None:
                seat.moved(state)

    def _served(self, served: ServedCall) -> None:
        """The engine's times are told once, to the operation that has been here longest."""
        self.cut_short = served.reason == "abort"
        first = next((seat.served for seat in self._seats if seat.served is not None), None)
        if first is not None:
            first(served)

    # ----------------------------------------------------------------------------------------------

    @property
    def _has_grace(self) -> bool:
        """Whether somebody may come back for it."""
        return (
            self.own is not None
            and self.replay.whole
            and self._limits.key_grace_seconds > 0
            and not self._admission.draining
        )

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
