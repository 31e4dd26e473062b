"""One operation: a submitted frame, its engine call and its single terminal.

The operation owns one task. Whoever ends it early (`stop`) does so engine first: the abort goes to
the engine, whatever events still come are not sent, and the terminal follows the engine's receipt
(design, decision 5).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing

import anyio
import msgspec
from anyio.abc import TaskGroup

from nnrp_sched.engine.records import AbortReceipt, Caller, ChatCall, Reprioritized, RequestState
from nnrp_sched.errors import BackendError, ProfileError, ProfileStreamError
from nnrp_sched.profile import (
    ChatMapper,
    Completed,
    Event,
    RequestEnvelope,
    backend_profile_error,
    encode_event,
    profile_error,
)
from nnrp_sched.server.budget_watch import BudgetWatch
from nnrp_sched.server.cancellation import is_our_cancellation
from nnrp_sched.server.ending import OVERRIDING, Asked, Ending, Silent
from nnrp_sched.server.engine_calls import EngineCall, ask_abort, completed
from nnrp_sched.server.farewell import take_leave
from nnrp_sched.server.observation import Observation
from nnrp_sched.server.priority_wishes import PriorityWishes
from nnrp_sched.server.progress import Progress
from nnrp_sched.server.terminal import FAULT, OperationChannel, Verdict, verdict
from nnrp_sched.server.time_limits import TimeLimits
from nnrp_sched.wire import TraceContext

logger = logging.getLogger(__name__)

_GOING_ON = (None, Ending.BUDGET)
"""What does not keep events from being sent."""


class Operation:
    """The life of one submitted frame, from its envelope to its terminal."""

    endless = False
    """It ends by itself, sooner or later."""

    def __init__(
        self,
        request_id: str,
        envelope: RequestEnvelope,
        call: EngineCall,
        channel: OperationChannel,
        *,
        caller: Caller,
        priority: int,
        abort_seconds: float,
        observation: Observation,
    ) -> None:
        self.request_id = request_id
        """Unique in this server while the operation runs; the engine's handle of its own call."""
        self.call = call
        self.caller = caller
        self.receipt: AbortReceipt | None = None
        """What the engine said to the abort, once it was asked and has answered."""
        self.observation = observation
        self._priority = priority
        self._envelope = envelope
        self._channel = channel
        self._abort_seconds = abort_seconds
        self._ending: Ending | None = None
        self._diagnostic = ""
        self.times = TimeLimits(self.stop)
        """By when it has to end."""
        self.budget = BudgetWatch(call.tokens, lambda: self.stop(Ending.BUDGET))
        self._progress = Progress(channel.send_progress)
        self._ended = False
        """The engine call is through: nothing can be stopped any more."""
        self._tasks: TaskGroup | None = None
        self._call_scope = anyio.CancelScope()
        self._abort_done: anyio.Event | None = None
        self._wishes = PriorityWishes(call, self.name)

    @property
    def name(self) -> str:
        """The id that users see."""
        return self.caller.operation or self.request_id

    def stop(self, ending: Ending, diagnostic: str = "", asked: Asked | None = None) -> None:
        """End the operation. The first reason counts, unless the session goes away under it.

        A spent budget leaves the last word to what was produced; any other reason takes it away.
        """
        before = self._ending
        first = before is None
        if before in (None, Ending.BUDGET) or ending in OVERRIDING:
            self._ending, self._diagnostic = ending, diagnostic
        if first and not self._ended:
            self.observation.abort_began(ending, asked)
        if ending is Ending.ABORT:
            # No event may follow it, not even those that close tool calls.
            self._channel.mute()
        if ending is not Ending.BUDGET:
            self._channel.discard()
            if before is Ending.BUDGET:
                self._call_scope.cancel()
        if first and self._tasks is not None:
            self._abort_done = anyio.Event()
            self._tasks.start_soon(self._abort_call, self._abort_done, ending)
        elif first:
            self._withhold(ending)

    def claim_abort(self) -> bool:
        """End the operation because a control request asked for it.

        True when it is the caller's to ask the engine, and then to call `settle_abort` whatever it
        does: many operations are aborted by one call, so that none of them gets the place of
        another. False when it does not have the call, was asked already, or goes on for others.
        """
        if self._ended or self._ending is not None:
            return False
        self._ending = Ending.REQUESTED
        self._channel.discard()
        self.observation.abort_began(Ending.REQUESTED)
        if self._tasks is None:
            self._withhold(Ending.REQUESTED)
            return False
        self._abort_done = anyio.Event()
        if (receipt := self.call.claim(Ending.REQUESTED)) is not None:
            self.settle_abort(receipt)
        return receipt is None

    def _withhold(self, ending: Ending) -> None:
        """No call of its own is running yet, and none will: there is nothing to ask the engine."""
        if not self._ended:
            receipt = self.call.withhold(ending)
            self.receipt = receipt or AbortReceipt(self.name, "admitting", True, True, 0, 0.0)
            self.observation.abort_ended(self.receipt)
        self._call_scope.cancel()

    def settle_abort(self, receipt: AbortReceipt | None) -> None:
        """Hand in the receipt for a claimed abort; None when the engine gave none in time."""
        assert self._abort_done is not None
        self.receipt = receipt
        self.observation.abort_ended(receipt)
        self._call_scope.cancel()
        self._abort_done.set()

    async def abort_receipt(self) -> AbortReceipt:
        """What the first abort did, once that is known."""
        if self._abort_done is not None:
            await self._abort_done.wait()
        if self.receipt is not None:
            return msgspec.structs.replace(self.receipt, request_id=self.name)
        if self._ended:
            return AbortReceipt(self.name, "finished", False, True, None, 0.0)
        return AbortReceipt(self.name, "unknown", False, False, None, 0.0)

    async def reprioritize(self, priority: int) -> Reprioritized:
        """Change the priority, in the engine once it has the call."""
        if self._tasks is None and not self._ended:
            self._priority = priority
            return Reprioritized(self.name, applied=True, reason="applied")
        return await self.call.reprioritize(priority)

    def update_priority(self, priority: int, refused: Callable[[str], None]) -> None:
        """PRIORITY_UPDATE: like `reprioritize`, where only the last of several wishes counts.

        `refused` is called with the reason when the engine never changes priorities.
        """
        self._priority = priority
        if self._tasks is not None:
            self._wishes.update(priority, refused, self._tasks)

    def take_trace(self, context: TraceContext) -> None:
        """A trace context of its own: it counts until the engine is called."""
        self.observation.trace.receive(context)

    async def run(self) -> None:
        """Serve the request and send its terminal."""
        final: Verdict = Silent()
        try:
            final = await self._serve()
        finally:
            self.observation.ended(final)

    async def _serve(self) -> Verdict:
        mapper = ChatMapper()
        try:
            outcome = await self._work(mapper)
        except Exception:
            # What runs beside the call failed: that ends this operation and nothing else.
            outcome = self._fault()
        self._tasks, self._ended = None, True
        final = verdict(outcome, self._ending, self._diagnostic)
        if isinstance(final, ProfileError):
            self._send(mapper.interrupt(message=final.message))  # Closes the open tool calls.
        explained = self._envelope.diagnostics
        return await take_leave(self._channel, self.observation, final, explained=explained)

    async def _work(self, mapper: ChatMapper) -> Verdict:
        outcome: Verdict = Silent()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            if self._envelope.timeout_ms:
                self.times.set(Ending.TIMEOUT, self._envelope.timeout_ms / 1000)
            self.budget.start(tasks)
            self._progress.received()
            if self._ending is None:
                outcome = await self._call(mapper)
            if self._abort_done is not None:
                await self._abort_done.wait()
            self._tasks = None
            self._ended = True
            self.times.close()
            tasks.cancel_scope.cancel()
        return outcome

    def _fault(self) -> ProfileError:
        logger.exception("request %s failed inside the server", self.request_id)
        return profile_error("adapter_runtime_error", FAULT)

    async def _call(self, mapper: ChatMapper) -> Verdict:
        """Make the engine call: its completion, its failure, or nothing when ended early."""
        body = dict(self._envelope.body)
        call = ChatCall(
            request_id=self.request_id,
            body=body,
            priority=self._priority,
            traceparent=self.observation.dispatch(),
            caller=self.caller,
            moved=self._moved,
            served=self.observation.served,
        )
        with self._call_scope:
            try:
                if body.get("stream") is True:
                    return await self._stream(call, mapper)
                return completed(await self.call.complete(call))
            except BackendError as error:
                return backend_profile_error(error)
            except ProfileStreamError as error:
                return profile_error("tool_call_stream_invalid", str(error))
            except (Exception, asyncio.CancelledError) as error:
                # The one boundary between the engine's code and ours: it must not take the
                # connection down, and the peer gets a terminal whatever happened.
                if is_our_cancellation(error):
                    raise
                return self._fault()
        return Silent()

    async def _stream(self, call: ChatCall, mapper: ChatMapper) -> Verdict:
        """Send the events of a streaming call; its completion, or nothing when ended early."""
        async with aclosing(self.call.stream(call)) as chunks:
            async for chunk in chunks:
                if self._ending not in _GOING_ON:
                    # The engine has the abort, and ends the call with its receipt on the way.
                    continue
                self._send(mapper.chunk(chunk))
                self.budget.check()
                if self._channel.full and not await self._channel.room():
                    self.stop(Ending.SLOW_READER)
        if self._ending not in _GOING_ON:
            return Silent()
        *events, last = mapper.finish()
        self._send(events)
        if self._channel.waiting and not await self._channel.flushed():
            self.stop(Ending.SLOW_READER)
            return Silent()
        assert isinstance(last, Completed)
        return last

    def _moved(self, state: RequestState) -> None:
        """The engine's scheduler has moved the call."""
        if self._ending is None:
            self._progress.moved(state)

    async def _abort_call(self, done: anyio.Event, ending: Ending) -> None:
        """Ask the engine to stop the call, then stop waiting for it."""
        try:
            self.receipt = await ask_abort(self.call, ending, self._abort_seconds)
        finally:
            self.observation.abort_ended(self.receipt)
            if self._ending is Ending.BUDGET:
                # What was produced is on its way; the engine has as long for it as for an abort.
                self._call_scope.deadline = anyio.current_time() + self._abort_seconds
            else:
                self._call_scope.cancel()
            done.set()

    def _send(self, events: Iterable[Event]) -> None:
        for event in events:
            self._progress.producing()
            document = encode_event(event)
            self._channel.send_partial(document)
            self.observation.event_sent(len(document))
