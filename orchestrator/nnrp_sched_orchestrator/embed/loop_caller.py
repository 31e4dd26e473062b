"""Calls into an event loop from threads beside it."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from nnrp_sched_orchestrator.embed.records import Unanswered

AnswerT = TypeVar("AnswerT")


class LoopCaller:
    """Runs coroutines in a loop, for threads that wait for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._process = os.getpid()
        self._ending: set[asyncio.Task[Any]] = set()

    @property
    def left_behind(self) -> bool:
        """Whether this is a fork of the process in which the loop runs: here nothing runs it."""
        return os.getpid() != self._process

    def call(
        self, function: Callable[..., Coroutine[Any, Any, AnswerT]], *arguments: Any
    ) -> AnswerT:
        """The answer of a coroutine function.

        When the waiting thread is interrupted, at whatever point, the coroutine is cancelled.
        Raises `Unanswered` when the loop has ended or was left behind by a fork, and `RuntimeError`
        in the loop's own thread, which nobody would answer.
        """
        if self.left_behind:
            raise Unanswered(
                "ConnectError",
                "this client was made before a fork, and its event loop is in the other process; "
                "make one in this process",
            )
        if running_loop() is self._loop:
            raise RuntimeError(
                "a blocking client cannot be used in the event loop that serves it; use the async "
                "one, or call this in a thread (asyncio.to_thread)"
            )
        if self._loop.is_closed():
            raise Unanswered("ConnectError", "the client was closed")
        # Not `run_coroutine_threadsafe`: an interrupt before it returns leaves nothing to cancel.
        answer: Future[AnswerT] = Future()
        try:
            self._loop.call_soon_threadsafe(self._begin, answer, function, arguments)
            return answer.result()
        except BaseException:
            answer.cancel()
            raise

    def finish(self, function: Callable[..., Coroutine[Any, Any, object]]) -> None:
        """Have something come to its end; waits for that where it can.

        The garbage collector may call this, in the loop's own thread too. Of a loop that has ended,
        or was left behind by a fork, there is nothing left to end.
        """
        if self._loop.is_closed() or self.left_behind:
            return
        if running_loop() is not self._loop:
            self.call(function)
            return
        task = self._loop.create_task(function())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _begin(
        self,
        answer: "Future[AnswerT]",
        function: Callable[..., Coroutine[Any, Any, AnswerT]],
        arguments: tuple[Any, ...],
    ) -> None:
        if answer.cancelled():
            return
        task = self._loop.create_task(function(*arguments))

        def hand_over(_task: "asyncio.Task[AnswerT]") -> None:
            error = None if task.cancelled() else task.exception()
            if task.cancelled():
                answer.cancel()
            if not answer.set_running_or_notify_cancel():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        def give_up(_answer: "Future[AnswerT]") -> None:
            if answer.cancelled() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(task.cancel)

        task.add_done_callback(hand_over)
        answer.add_done_callback(give_up)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
