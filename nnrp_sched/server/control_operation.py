"""A control request as an operation: one task, one terminal, cancellable, bounded in time."""

import asyncio
import logging
from typing import Any

import anyio

from nnrp_sched.errors import BackendError
from nnrp_sched.profile import Completed, ControlRequest, backend_profile_error, profile_error
from nnrp_sched.server import control
from nnrp_sched.server.cancellation import is_our_cancellation
from nnrp_sched.server.desk import Desk
from nnrp_sched.server.ending import OVERRIDING, Asked, Dropped, Ending, Silent
from nnrp_sched.server.terminal import FAULT, OperationChannel, Verdict, send_verdict, verdict
from nnrp_sched.server.time_limits import TimeLimits
from nnrp_sched.wire import DropReason, TraceContext

logger = logging.getLogger(__name__)


class ControlOperation:
    """The life of one control request."""

    def __init__(
        self, request: ControlRequest, desk: Desk, channel: OperationChannel, *, seconds: float
    ) -> None:
        """Raises `ProfileError` for a body that the request cannot have.

        `seconds` bounds the answer, and each look at the queue of a watch.
        """
        self.endless = request.operation == control.WATCH
        """Whether it ends only when told to."""
        self._request = request
        self._body: Any = control.prepared(request)
        self._desk = desk
        self._channel = channel
        self._seconds = seconds
        self._ending: Ending | None = None
        self._diagnostic = ""
        self.times = TimeLimits(self.stop)
        self._scope = anyio.CancelScope()

    def stop(self, ending: Ending, diagnostic: str = "", asked: Asked | None = None) -> None:
        """End it. What the engine was asked to do it does all the same."""
        if self._ending is None or ending in OVERRIDING:
            self._ending, self._diagnostic = ending, diagnostic
        self._channel.mute()
        self._scope.cancel()

    def take_trace(self, context: TraceContext) -> None:
        """Nothing: no engine call, no span."""

    async def run(self) -> None:
        """Answer the request and send its terminal."""
        outcome: Verdict = Silent()
        with self._scope:
            outcome = await self._answer()
        send_verdict(self._channel, verdict(outcome, self._ending, self._diagnostic))

    async def _answer(self) -> Verdict:
        try:
            if self.endless:
                await control.watch(self._desk, self._body, self._channel, self._seconds)
                return Dropped(DropReason.BACKPRESSURE, "reader_too_slow")
            with anyio.fail_after(self._seconds):
                return Completed(body=await control.answer(self._desk, self._request, self._body))
        except BackendError as error:
            return backend_profile_error(error)
        except TimeoutError:
            return profile_error(
                "request_timeout", f"the engine did not answer within {self._seconds:g} s"
            )
        except (Exception, asyncio.CancelledError) as error:
            # As for chats: the engine's code must not take the connection down.
            if is_our_cancellation(error):
                raise
            logger.exception("%s failed inside the server", self._request.operation)
            return profile_error("adapter_runtime_error", FAULT)
