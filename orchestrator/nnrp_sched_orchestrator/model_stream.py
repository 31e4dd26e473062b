"""A model call as the work of a stream: its share of tokens, its lease, its chat, its result."""

import time
from typing import Final

import anyio
import msgspec

from nnrp_sched.client import Chat
from nnrp_sched.client import Outcome as ChatOutcome
from nnrp_sched.errors import ConnectionLost, NnrpSchedError, ProfileError
from nnrp_sched.profile import Cancelled, Diagnostics, Error, Event
from nnrp_sched_orchestrator.answer import Answer
from nnrp_sched_orchestrator.budget import Account
from nnrp_sched_orchestrator.earlier_tries import GOING_DOWN, TRIES, EarlierTries
from nnrp_sched_orchestrator.errors import BudgetExceeded, OperationLost
from nnrp_sched_orchestrator.grants import Grant, Settlements, grant
from nnrp_sched_orchestrator.model_request import ModelRequest
from nnrp_sched_orchestrator.model_state import engine_state, pool_state
from nnrp_sched_orchestrator.patience import Patience, refusal_of
from nnrp_sched_orchestrator.pool import Pool
from nnrp_sched_orchestrator.reading import Reading
from nnrp_sched_orchestrator.records import ModelResult, Receipt, StreamState, StreamStatus
from nnrp_sched_orchestrator.replay import ReplayDiffers, Shown
from nnrp_sched_orchestrator.stopwatch import Stopwatch
from nnrp_sched_orchestrator.ticket import Lease, Ticket
from nnrp_sched_orchestrator.work import Emit

_DEADLINE: Final = "deadline_expired"
_BUDGET: Final = "budget_exceeded"
"""How a server says why it dropped a call."""
_GRACE_SECONDS: Final = 1.0
"""How much later than this side the server ends a call whose deadline is over."""


class ModelWork:
    """One model call."""

    def __init__(
        self,
        stream_id: str,
        request: ModelRequest,
        *,
        pool: Pool,
        account: Account,
        settlements: Settlements,
        abort_seconds: float,
    ) -> None:
        """`account` pays for it; a server has `abort_seconds` to confirm an abort."""
        self._id = stream_id
        self._request = request
        self._pool = pool
        self._account = account
        self._settlements = settlements
        self._abort_seconds = abort_seconds
        self._watch = Stopwatch()
        self._answer = Answer()
        self._shown = Shown() if request.on_loss == "resubmit" else None
        self._patience = Patience()
        self._earlier = EarlierTries(request.idempotency_key)
        self._share: Grant | None = None
        self._ticket: Ticket | None = None
        self._lease: Lease | None = None
        self._chat: Chat | None = None
        self._tries = 0
        self._speaks = False
        """Whether anything has come of this try."""
        self._submitted = False
        """Whether any try has reached a server, which may still run it."""
        self._refused = False
        """Whether it waits because its server had no room after all."""
        self._failed = False
        self._receipt: Receipt | None = None

    # --- for the stream -------------------------------------------------------------------------

    async def run(self, emit: Emit[Event]) -> ModelResult:
        """Make the call. Raises what ends it without an answer."""
        request = self._request
        try:
            self._share = await grant(
                self._account, self._settlements, request.asked, choices=request.choices
            )
            while True:
                try:
                    return self._conclude(await self._try(emit))
                except ConnectionLost as loss:
                    self._prepare_again(loss)
                except ReplayDiffers as difference:
                    raise self._lost(str(difference)) from difference
                except ProfileError as refusal:
                    await self._wait_for_room(refusal)
        except Exception:
            self._failed = True
            raise
        finally:
            self._settle()

    async def stop(self, reason: str) -> Receipt:
        """The proof of its end: `run` has seen to that."""
        self._watch.finish()
        known = self._receipt or self._unsubmitted()
        self._receipt = msgspec.structs.replace(known, reason=reason)
        return self._receipt

    def partial(self, status: StreamStatus, error: NnrpSchedError | None) -> ModelResult:
        """What there is so far."""
        return self._answer.result(status, error, self._receipt, self._watch.timings)

    @property
    def state(self) -> StreamState:
        """Where it stands."""
        chat, lease = self._chat, self._lease
        if self._refused:
            return StreamState("queued", where="engine")
        if chat is None or lease is None or chat.name is None:
            return pool_state(self._ticket)
        if self._speaks:
            return StreamState("running")
        place = self._pool.place(lease.endpoint, chat.name) if lease.features.control else None
        return engine_state(place, chat.stage)

    # --- one try --------------------------------------------------------------------------------

    async def _try(self, emit: Emit[Event]) -> ChatOutcome:
        request = self._request
        self._tries += 1
        self._watch.queue()
        self._ticket = self._pool.queue(
            request.program, request.agent, weight=request.weight, affinity=request.affinity
        )
        with anyio.CancelScope() as guard:
            async with self._ticket as lease:
                # From here on a cancellation is met by an abort first (`Reading`).
                guard.shield = True
                self._watch.unqueue()
                return await self._converse(lease, guard, emit)
        raise AssertionError("a scope that nobody cancels swallowed something")

    async def _converse(
        self, lease: Lease, guard: anyio.CancelScope, emit: Emit[Event]
    ) -> ChatOutcome:
        if self._submitted and not lease.features.idempotency:
            raise self._lost("its server cannot attach a second call to the first")
        assert self._share is not None
        if not self._earlier.leave_behind(lease.endpoint, self._share):
            raise self._exceeded()
        self._lease = lease
        chat = self._chat = self._open(lease)
        self._watch.submit()
        reading = Reading(lease, chat, self._abort_seconds)
        try:
            return await reading.run(guard, lambda event: self._take(chat, event, emit))
        finally:
            ended = chat.outcome
            refused = ended is not None and ended.status == "error" and not self._speaks
            self._submitted = self._submitted or (chat.name is not None and not refused)
            self._receipt = reading.receipt(self._id, self._answer.spent)

    def _open(self, lease: Lease) -> Chat:
        request, features = self._request, lease.features
        assert self._share is not None
        if features.token_budget:
            self._share.suit(features.max_model_len)
        else:
            self._share.hold()
        terms = self._share.terms
        limit = request.limit
        left = None if limit is None else max(0.0, limit.at - time.monotonic())
        workflow = request.told(left, self._account.left)
        key = self._earlier.key if features.idempotency else None
        return lease.session.chat(
            request.outgoing(terms, features),
            stream=True,
            diagnostics=True if features.diagnostics else None,
            workflow=workflow if features.workflow else None,
            priority=request.priority if features.priority else None,
            idempotency_key=key,
            traceparent=request.traceparent,
            deadline=None if left is None else time.time() + left + _GRACE_SECONDS,
            token_budget=terms.token_budget,
        )

    async def _take(self, chat: Chat, event: Event, emit: Emit[Event]) -> None:
        if isinstance(event, Diagnostics):
            delay = event.diagnostics.get("queue_delay_ms")
            if isinstance(delay, int | float):
                self._watch.engine_queue_ms = float(delay)
            return
        if isinstance(event, Error | Cancelled):
            return  # The outcome tells.
        self._watch.event()
        self._speaks = True
        fresh = event if self._shown is None else self._shown.new(event)
        if fresh is None:
            return
        self._answer.take(fresh)
        assert self._share is not None
        if self._share.extend(self._answer.estimate):
            chat.set_token_budget(self._share.terms.token_budget or 0)
        if self._share.overrun(self._answer.pieces):
            raise self._exceeded()
        await emit(fresh)

    # --- after it -------------------------------------------------------------------------------

    def _conclude(self, outcome: ChatOutcome) -> ModelResult:
        """The result of what the server said; raises what it stands for otherwise."""
        match outcome.status:
            case "completed":
                self._watch.finish()
                self._check_budget()
                return self.partial("completed", None)
            case "error":
                raise refusal_of(outcome)
            case "dropped" if self._request.limit is not None and outcome.reason == _DEADLINE:
                raise self._request.limit.error()
            case "dropped" if outcome.reason == _BUDGET:
                raise self._exceeded()
            case "dropped" if outcome.reason in GOING_DOWN:
                self._submitted = False  # It has ended for certain: a further try is the only one.
                raise ConnectionLost(f"its server went down: {outcome.reason}")
            case _:
                assert self._receipt is not None
                self._watch.finish()
                reason = outcome.reason or outcome.status
                self._receipt = msgspec.structs.replace(self._receipt, reason=reason)
                return self.partial("cancelled", None)

    def _check_budget(self) -> None:
        share = self._share
        if share is not None and share.cut(self._answer.spent, self._answer.finish_reason):
            raise self._exceeded()

    def _exceeded(self) -> BudgetExceeded:
        self._watch.finish()
        self._settle()
        owner = self._account.tightest
        error = owner.exceeded("tokens", owner.budget.tokens or 0)
        error.partial = self.partial("failed", error)
        return error

    def _prepare_again(self, loss: ConnectionLost) -> None:
        """Get ready for another try; raises `OperationLost` when there may be none."""
        if isinstance(loss, OperationLost):
            raise loss
        if self._shown is None:
            raise self._lost(f"its connection was lost: {loss}") from loss
        if self._shown.overflowed or self._tries >= TRIES:
            raise self._lost(f"its connection was lost in try {self._tries}: {loss}") from loss
        lease = self._lease
        if self._submitted and (lease is None or not lease.features.idempotency):
            raise self._lost(f"its connection was lost, and it may have run: {loss}") from loss
        self._earlier.lost(lease.endpoint if lease and self._submitted else None, self._shown)
        self._begin_again()

    async def _wait_for_room(self, refusal: ProfileError) -> None:
        """Wait as long as a full server asks for; raises its refusal when that is of no use."""
        seconds = None if self._speaks else self._patience.seconds(refusal)
        if seconds is None:
            raise refusal
        self._begin_again()
        self._receipt = None  # That of a refusal proves nothing of the call.
        self._watch.queue()
        self._refused = True
        try:
            await anyio.sleep(seconds)
        finally:
            self._refused = False
            self._watch.unqueue()

    def _begin_again(self) -> None:
        """Nothing of this try counts any more."""
        if self._shown is not None:
            self._shown.restart()
        self._chat = self._lease = None
        self._speaks = False

    def _lost(self, why: str) -> OperationLost:
        self._watch.finish()
        return OperationLost(f"call {self._id}: {why}", self.partial("failed", None))

    def _settle(self) -> None:
        """Give back what was not used; the first time counts."""
        share = self._share
        if share is None or share.settled:
            return
        told = None if self._receipt is None else self._receipt.tokens
        used = max(told or 0, self._answer.spent)
        share.settle(used)
        self._settlements.tell()
        self._pool.charge(self._request.program, self._request.agent, used)

    def _unsubmitted(self) -> Receipt:
        """Its end, when no server ever had it."""
        if self._failed:
            return Receipt(self._id, tokens=0)
        return Receipt(self._id, state="queued", accepted=True, tokens=0)
