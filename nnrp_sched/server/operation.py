"""One operation: a submitted frame, its engine call and its single terminal.

The operation owns one task. Whoever ends it early (`stop`) does so engine first: the abort goes to
the engine, whatever events still come are not sent, and the terminal follows the engine's receipt
(design, decision 5).
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import aclosing
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from nnrp_sched.engine.port import AbortReceipt, ChatCall, Engine
from nnrp_sched.errors import (
    BackendError,
    LocalProtocolError,
    ProfileError,
    ProfileStreamError,
)
from nnrp_sched.profile import Cancelled as CancelledEvent
from nnrp_sched.profile import (
    ChatMapper,
    Completed,
    Event,
    RequestEnvelope,
    backend_profile_error,
    encode_event,
    error_document,
    profile_error,
)
from nnrp_sched.server.ending import (
    OVERRIDING,
    TERMINALS,
    Cancelled,
    Dropped,
    Ending,
    Failed,
    Silent,
)
from nnrp_sched.wire import DropReason

logger = logging.getLogger(__name__)

Verdict = Completed | ProfileError | Cancelled | Dropped | Silent
"""What ends an operation; a `Failed` ending has become its `ProfileError`."""

_STATUS_OK = 200
_STATUS_CANCELLED = 499
_FAULT = "the server failed while serving this request"


class OperationChannel(Protocol):
    """How an operation talks to its peer; the connection binds it to a session and a frame."""

    @property
    def full(self) -> bool:
        """Whether the peer reads too slowly for more events now."""
        ...

    async def room(self) -> None:
        """Wait until the peer has read enough."""
        ...

    def send_partial(self, document: bytes) -> None:
        """Send one event."""
        ...

    def send_terminal(self, document: bytes, status_code: int) -> None:
        """Send the terminal document."""
        ...

    def send_drop(self, reason: DropReason, diagnostic: str) -> None:
        """End the operation with RESULT_DROP_REASON."""
        ...


class Operation:
    """The life of one submitted frame, from its envelope to its terminal."""

    def __init__(
        self,
        request_id: str,
        envelope: RequestEnvelope,
        engine: Engine,
        channel: OperationChannel,
        *,
        abort_seconds: float,
    ) -> None:
        self.request_id = request_id
        """The engine's handle: unique in this server while the operation runs."""
        self.receipt: AbortReceipt | None = None
        """What the engine said to the abort, once it was asked and has answered."""
        self._envelope = envelope
        self._engine = engine
        self._channel = channel
        self._abort_seconds = abort_seconds
        self._ending: Ending | None = None
        self._muted = False
        """Set by ABORT: no event may follow it, not even those that close tool calls."""
        self._tasks: TaskGroup | None = None
        self._call_scope = anyio.CancelScope()
        self._abort_done: anyio.Event | None = None

    def stop(self, ending: Ending) -> None:
        """End the operation. The first reason counts, unless the session goes away under it."""
        first = self._ending is None
        if first or ending in OVERRIDING:
            self._ending = ending
        if ending is Ending.ABORT:
            self._muted = True
        if first and self._tasks is not None:
            self._abort_done = anyio.Event()
            self._tasks.start_soon(self._abort_call, self._abort_done)
        elif first:
            self._call_scope.cancel()  # No call is running: nothing to tell the engine.

    async def run(self) -> None:
        """Serve the request and send its terminal."""
        mapper = ChatMapper()
        outcome: Verdict = Silent()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            if self._envelope.timeout_ms:
                tasks.start_soon(self._expire, self._envelope.timeout_ms / 1000)
            outcome = await self._call(mapper)
            if self._abort_done is not None:
                await self._abort_done.wait()
            self._tasks = None
            tasks.cancel_scope.cancel()
        self._finish(self._verdict(outcome), mapper)

    async def _call(self, mapper: ChatMapper) -> Verdict:
        """Make the engine call: its completion, its failure, or nothing when ended early."""
        body = dict(self._envelope.body)
        call = ChatCall(request_id=self.request_id, body=body)
        with self._call_scope:
            try:
                if body.get("stream") is True:
                    return await self._stream(call, mapper)
                return Completed(body=await self._engine.complete(call))
            except BackendError as error:
                return backend_profile_error(error)
            except ProfileStreamError as error:
                return profile_error("tool_call_stream_invalid", str(error))
            except (Exception, asyncio.CancelledError) as error:
                # The one boundary between the engine's code and ours: it must not take the
                # connection down, and the peer gets a terminal whatever happened.
                if _is_our_cancellation(error):
                    raise
                logger.exception("request %s failed inside the server", self.request_id)
                return profile_error("adapter_runtime_error", _FAULT)
        return Silent()

    async def _stream(self, call: ChatCall, mapper: ChatMapper) -> Verdict:
        """Send the events of a streaming call; its completion, or nothing when ended early."""
        async with aclosing(self._engine.stream(call)) as chunks:
            async for chunk in chunks:
                if self._ending is not None:
                    return Silent()
                self._send(mapper.chunk(chunk))
                if self._channel.full:
                    await self._channel.room()
        if self._ending is not None:
            return Silent()
        *events, completed = mapper.finish()
        self._send(events)
        assert isinstance(completed, Completed)
        return completed

    async def _expire(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        self.stop(Ending.TIMEOUT)

    async def _abort_call(self, done: anyio.Event) -> None:
        """Ask the engine to stop the call, then stop waiting for it."""
        try:
            with anyio.move_on_after(self._abort_seconds, shield=True) as limit:
                self.receipt = await self._engine.abort(self.request_id)
            if self.receipt is not None:
                logger.info("request %s aborted: %s", self.request_id, self.receipt)
            elif limit.cancelled_caught:
                logger.warning("request %s: the engine did not confirm its abort", self.request_id)
        except (Exception, asyncio.CancelledError) as error:
            # The engine's code again: the operation ends without a receipt, and says so here.
            if _is_our_cancellation(error):
                raise
            logger.exception("request %s: the abort failed", self.request_id)
        finally:
            self._call_scope.cancel()
            done.set()

    def _finish(self, verdict: Verdict, mapper: ChatMapper) -> None:
        """Send the one terminal; when that cannot be written, the error that says so."""
        try:
            self._conclude(verdict, mapper)
        except LocalProtocolError as error:
            fault = f"the answer cannot be sent: {error}"
            self._conclude(profile_error("adapter_runtime_error", fault), mapper)
        except Exception:
            # What the engine answered is no JSON.
            logger.exception("request %s: its answer cannot be encoded", self.request_id)
            self._conclude(profile_error("adapter_runtime_error", _FAULT), mapper)

    def _conclude(self, verdict: Verdict, mapper: ChatMapper) -> None:
        """Close the open tool calls of a failure, then send the one terminal."""
        match verdict:
            case Completed() as completed:
                self._channel.send_terminal(encode_event(completed), _STATUS_OK)
            case ProfileError() as failure:
                if not self._muted:
                    self._send(mapper.interrupt(message=failure.message))
                self._channel.send_terminal(encode_event(error_document(failure)), failure.status)
            case Cancelled(reason):
                document = encode_event(CancelledEvent(reason=reason))
                self._channel.send_terminal(document, _STATUS_CANCELLED)
            case Dropped(reason, diagnostic):
                self._channel.send_drop(reason, diagnostic)
            case Silent():
                pass

    def _send(self, events: Iterable[Event]) -> None:
        for event in events:
            self._channel.send_partial(encode_event(event))

    def _verdict(self, outcome: Verdict) -> Verdict:
        """What ends the operation: an ending from outside beats the outcome of the call."""
        if self._ending is None:
            return outcome
        terminal = TERMINALS[self._ending]
        if isinstance(terminal, Failed):
            return profile_error(terminal.code, terminal.message)
        return terminal


def _is_our_cancellation(error: BaseException) -> bool:
    """Whether this task is being cancelled; if not, a CancelledError is a fault of the engine's.

    Engines wait for tasks of their own, and those may be cancelled without anybody asking us.
    """
    task = asyncio.current_task()
    cancelled = task is not None and task.cancelling() > 0
    return cancelled and isinstance(error, asyncio.CancelledError)
