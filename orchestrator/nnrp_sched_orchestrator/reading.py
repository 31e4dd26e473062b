"""Reading a chat in a lease, so that leaving it is an abort with a receipt."""

import time
from collections.abc import Awaitable, Callable

import anyio

from nnrp_sched.client import Chat
from nnrp_sched.client import Outcome as ChatOutcome
from nnrp_sched.errors import ConnectionLost
from nnrp_sched.profile import Event
from nnrp_sched_orchestrator.pool_records import Aborted
from nnrp_sched_orchestrator.records import Receipt
from nnrp_sched_orchestrator.ticket import Lease


class Reading:
    """One chat, read once."""

    def __init__(self, lease: Lease, chat: Chat, abort_seconds: float) -> None:
        """The server has `abort_seconds` to confirm an abort, and once more to end the chat."""
        self._lease = lease
        self._chat = chat
        self._abort_seconds = abort_seconds
        self._scope = anyio.CancelScope(shield=True)
        self._ended = anyio.Event()
        self._failure: Exception | None = None
        self._aborted: Aborted | None = None
        self._abort_ms = 0.0

    async def run(
        self, guard: anyio.CancelScope, take: Callable[[Event], Awaitable[None]]
    ) -> ChatOutcome:
        """Read to the end; every event goes to `take`.

        `guard` is a shielded scope around this: it is opened only while nothing is going on but
        waiting for the end. A cancellation first aborts the chat in its engine, with nothing cut
        off of what the server still sends; it is then raised, unless the chat had ended by itself.
        Raises what reading raises.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read, take)
            try:
                guard.shield = False
                await self._ended.wait()
            except BaseException:
                guard.shield = True
                await self._abort("cancelled")
                outcome = self._chat.outcome
                if outcome is None or self._was_taken_out:
                    raise
            finally:
                guard.shield = True
        return await self._outcome()

    async def _outcome(self) -> ChatOutcome:
        if self._failure is not None:
            if not isinstance(self._failure, ConnectionLost):
                await self._abort("reading failed")
            raise self._failure
        assert self._chat.outcome is not None
        return self._chat.outcome

    async def _read(self, take: Callable[[Event], Awaitable[None]]) -> None:
        try:
            with self._scope:
                async for event in self._chat:
                    await take(event)
        except Exception as error:
            self._failure = error  # Raised by `run`, outside the task group.
        finally:
            self._ended.set()

    async def _abort(self, reason: str) -> None:
        """End the chat in its engine and wait for what still comes, both for a limited time."""
        if self._chat.outcome is None and self._chat.name is not None:
            began = time.monotonic_ns()
            self._aborted = await self._lease.abort(self._chat, reason, seconds=self._abort_seconds)
            self._abort_ms = (time.monotonic_ns() - began) / 1e6
            with anyio.move_on_after(self._abort_seconds):
                await self._ended.wait()
        self._scope.cancel()

    @property
    def _was_taken_out(self) -> bool:
        return self._aborted is not None and self._aborted.receipt.accepted

    def receipt(self, stream_id: str, tokens: int) -> Receipt | None:
        """What is known of its end; None when the server never had it.

        `tokens` are those that came.
        """
        chat, lease = self._chat, self._lease
        if chat.name is None:
            return None
        place = (stream_id, chat.name, lease.endpoint)
        if self._aborted is not None:
            told = self._aborted.receipt
            return Receipt(
                *place,
                state=told.state,
                accepted=told.accepted,
                authoritative=told.authoritative and self._aborted.unconfirmed is None,
                tokens=tokens if told.tokens is None else told.tokens,
                latency_ms=self._abort_ms,
                unconfirmed=self._aborted.unconfirmed,
            )
        if chat.outcome is None:
            why = f"nothing was heard of its end: {self._failure}"
            return Receipt(
                *place, state="unknown", authoritative=False, tokens=tokens, unconfirmed=why
            )
        return Receipt(*place, tokens=tokens)
