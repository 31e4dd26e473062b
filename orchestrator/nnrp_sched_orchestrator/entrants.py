"""The streams of one fan-out: started, watched, and none of them left behind."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Generic, Self, cast

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct
from typing_extensions import TypeIs, TypeVar

from nnrp_sched.transport import background_tasks
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.fanout_report import FanOutReport, Tally
from nnrp_sched_orchestrator.model_request import ModelRequest, chat_body
from nnrp_sched_orchestrator.records import ModelResult, Receipt
from nnrp_sched_orchestrator.stream import Stream
from nnrp_sched_orchestrator.work import Outcome

ResultT = TypeVar("ResultT", bound=Outcome, default=ModelResult)

Make = Callable[[Agent], Stream[Any, ResultT]]
"""Starts a stream of an agent."""


class Branch(Struct, Generic[ResultT], frozen=True):
    """What to start, and how many output tokens it may make, where that is known."""

    make: Make[ResultT]
    max_tokens: int | None = None


Entrant = str | Mapping[str, Any] | Make[ResultT] | Branch[ResultT]
"""What a user says, a chat body, or how to start a stream."""


def branch_of(entrant: Entrant[ResultT]) -> Branch[ResultT]:
    """An entrant as a branch. A body's own limit is what it may make."""
    if _is_branch(entrant):
        return entrant
    if _is_body(entrant):
        body = chat_body(entrant, None, {})
        limit = ModelRequest(body, program="", agent="").asked
        # A body stands only where results are those of models.
        return cast("Branch[ResultT]", Branch(lambda agent: agent.chat(body), limit))
    return Branch(entrant)


def _is_branch(entrant: Entrant[ResultT]) -> TypeIs[Branch[ResultT]]:
    return isinstance(entrant, Branch)


def _is_body(entrant: object) -> TypeIs[str | Mapping[str, Any]]:
    return isinstance(entrant, str | Mapping)


class Runner(Generic[ResultT]):
    """One stream of a fan-out."""

    def __init__(self, stream: Stream[Any, ResultT], index: int, max_tokens: int | None) -> None:
        self.stream = stream
        self.index = index
        """Its place in the order in which the streams were started."""
        self.max_tokens = max_tokens
        self.error: Exception | None = None
        self.heard = False
        """Whether its first event was announced."""
        self.dropped = False
        """Whether it was cancelled because nobody needs it any more."""
        self.watched = anyio.Event()
        """Set when it has ended and `error` is known."""

    @property
    def result(self) -> ResultT:
        """What came of it, or there is so far."""
        return self.stream.partial

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.watched.is_set()

    @property
    def receipt(self) -> Receipt | None:
        """Proof of its end, once it has ended."""
        return self.stream.receipt

    @property
    def succeeded(self) -> bool:
        """Whether it has ended with a whole result."""
        return self.over and self.error is None and self.result.status == "completed"


class Entrants(Generic[ResultT]):
    """Starts the streams of a fan-out in a block, and tells when they have something to tell.

    Leaving the block, for whatever reason, ends those that still run.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._block = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._tally = Tally()
        self._began = time.monotonic()
        self._running: dict[Runner[ResultT], None] = {}
        self._news: deque[Runner[ResultT]] = deque()
        """At most two a stream: that it has its first event, and that it has ended."""
        self._arrival = anyio.Event()

    async def __aenter__(self) -> Self:
        """Begin."""
        self._tasks = await self._block.enter_async_context(background_tasks())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """End what still runs."""
        await self.drop("nobody needs it any more")
        return await self._block.__aexit__(exc_type, exc, traceback)

    def __len__(self) -> int:
        """How many run, or have ended and were not told yet."""
        return len(self._running)

    @property
    def started(self) -> int:
        """How many were started."""
        return self._tally.started

    def start(self, branch: Branch[ResultT], *, tell_first_event: bool = False) -> Runner[ResultT]:
        """Start a stream. Raises as the agent does.

        With `tell_first_event` its events are read, and `next` tells of the first one too.
        """
        assert self._tasks is not None
        runner = Runner(branch.make(self._agent), self._tally.started, branch.max_tokens)
        self._tally.started += 1
        self._running[runner] = None
        watch = self._read if tell_first_event else self._wait
        self._tasks.start_soon(watch, runner)
        return runner

    async def next(self) -> Runner[ResultT]:
        """The next stream that has ended, or has its first event, whoever started it."""
        while not self._news:
            self._arrival = anyio.Event()
            await self._arrival.wait()
        runner = self._news.popleft()
        if runner.over:
            self._running.pop(runner, None)
        return runner

    async def drop(self, reason: str, *, keep: Runner[ResultT] | None = None) -> None:
        """Cancel what has not ended, at once, and wait for the receipts; never for ever."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for runner in self._running:
                    if runner is keep or runner.dropped:
                        continue
                    if runner.receipt is not None:
                        tasks.start_soon(runner.watched.wait)
                    else:
                        runner.dropped = True
                        tasks.start_soon(self._cancel, runner, reason)

    def report(self, winners: tuple[str, ...]) -> FanOutReport:
        """What became of all of them; once the block was left."""
        return self._tally.report(winners, time.monotonic() - self._began)

    # --- tasks ------------------------------------------------------------------------------------

    async def _wait(self, runner: Runner[ResultT]) -> None:
        try:
            await runner.stream.result()
        except Exception as error:
            runner.error = error
        finally:
            self._end(runner)

    async def _read(self, runner: Runner[ResultT]) -> None:
        try:
            async for _ in runner.stream:
                if not runner.heard:
                    runner.heard = True
                    self._tell(runner)
            await runner.stream.result()
        except Exception as error:
            runner.error = error
        finally:
            self._end(runner)

    async def _cancel(self, runner: Runner[ResultT], reason: str) -> None:
        receipt = await runner.stream.cancel(reason)
        if runner.receipt is not None:
            await runner.watched.wait()
        if runner.result.status == "cancelled" or not receipt.authoritative:
            tokens = self._tally.ended(runner.result, receipt)
            self._tally.lost(receipt, tokens, runner.max_tokens)
        else:
            # It ended by itself while it was being cancelled.
            runner.dropped = False
            self._count(runner)

    def _end(self, runner: Runner[ResultT]) -> None:
        runner.watched.set()
        if not runner.dropped:
            self._count(runner)
        self._tell(runner)

    def _count(self, runner: Runner[ResultT]) -> None:
        self._tally.ended(runner.result, runner.stream.receipt)
        if runner.error is not None:
            self._tally.failed(runner.stream.id, runner.error)

    def _tell(self, runner: Runner[ResultT]) -> None:
        self._news.append(runner)
        self._arrival.set()
