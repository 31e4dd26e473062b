"""The part of an agent that makes it a node of a program's tree: limits, streams, its end."""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio

from nnrp_sched.profile.workflow import PRIORITY_RANGE
from nnrp_sched_orchestrator.agent_events import AgentTap
from nnrp_sched_orchestrator.budget import NO_BUDGET, Account, Budget
from nnrp_sched_orchestrator.cancel import cancel_cone
from nnrp_sched_orchestrator.errors import AgentEnded, TooManyStreams
from nnrp_sched_orchestrator.live_streams import LiveStreams, call_at
from nnrp_sched_orchestrator.names import free_name
from nnrp_sched_orchestrator.program_scope import ProgramScope
from nnrp_sched_orchestrator.records import CancellationReport, EventT, Receipt, Spent
from nnrp_sched_orchestrator.running import Running
from nnrp_sched_orchestrator.snapshot import AgentSnapshot, StreamKind
from nnrp_sched_orchestrator.stream import Stream
from nnrp_sched_orchestrator.time_limit import TimeLimit, budget_limit, deadline, earliest
from nnrp_sched_orchestrator.trace import AttributeValue, TraceSpan, current_span
from nnrp_sched_orchestrator.work import ResultT, Work


class AgentNode:
    """Who may start streams, and what is below it."""

    def __init__(
        self,
        scope: ProgramScope,
        name: str,
        parent: "AgentNode | None" = None,
        *,
        budget: Budget | None = None,
        priority: int | None = None,
        deadline_seconds: float | None = None,
    ) -> None:
        self.name = name
        self.path: str = name if parent is None else f"{parent.path}/{name}"
        """The names from the program down to it, with `/` between them."""
        self.parent = parent
        inherited = None if parent is None else parent.priority
        self.priority: int | None = inherited if priority is None else _checked(priority)
        """What its model calls ask of the engine; lower is sooner, None: nothing."""
        self.report: CancellationReport | None = None
        """What cancelling it did, the last time."""
        self._scope = scope
        above = None if parent is None else parent._account
        self._account: Account = Account(self.path, budget or NO_BUDGET, above)
        self._own_limit = earliest(
            (budget_limit(self._account), deadline(self.path, deadline_seconds))
        )
        limit_above = None if parent is None else parent._limit
        self._limit: TimeLimit | None = earliest((self._own_limit, limit_above))
        self._depth: int = 0 if parent is None else parent._depth + 1
        self._children: dict[str, AgentNode] = {}
        self._ended: str | None = None
        """Why it starts nothing any more."""
        self._receipts: deque[Receipt] = deque(maxlen=scope.settings.receipts)
        stall_seconds = scope.settings.stream.stall_seconds
        self._tap = AgentTap(self.path, scope.settings.event_buffer, stall_seconds)
        self._span = TraceSpan(
            f"invoke_agent {name}",
            None if parent is None else parent._span_here(),
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": name,
                "gen_ai.agent.id": self.path,
                "gen_ai.conversation.id": scope.name,
            },
            provider=scope.provider,
        )
        self._live = LiveStreams(scope, self._tap, self._receipts.append)

    # --- what it is -----------------------------------------------------------------------------

    @property
    def streams(self) -> tuple[str, ...]:
        """The ids of its own streams that have not ended."""
        return tuple(stream.id for stream in self._live)

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Of its own streams that did not complete, the last ones."""
        return tuple(self._receipts)

    @property
    def budget(self) -> Budget:
        """Its own limits; those of the agents above it count too."""
        return self._account.budget

    @property
    def spent(self) -> Spent:
        """What it and those below it have spent."""
        return self._account.spent

    def spent_below(self) -> dict[str, Spent]:
        """What it and each agent below it have spent, by path; each with those below it."""
        return self._account.spent_below()

    @property
    def tokens_left(self) -> int | None:
        """Output tokens that are not spent, here and above; None when there is no limit."""
        return self._account.left

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the endpoints name, each once."""
        names = (name for each in self._scope.pool.endpoints for name in each.features.models)
        return tuple(dict.fromkeys(names))

    @property
    def traceparent(self) -> str:
        """The W3C traceparent of its span."""
        return self._span.traceparent

    def snapshot(self) -> AgentSnapshot:
        """How it and those below it stand."""
        return AgentSnapshot(
            self.path,
            self._ended,
            self.spent,
            self._live.snapshot(),
            self.receipts,
            tuple(child.snapshot() for child in self._children.values()),
        )

    # --- its time -------------------------------------------------------------------------------

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[Self, None]:
        """The time in which it starts streams."""
        limit = self._own_limit
        timer = None if limit is None else call_at(limit.at, self._time_is_up)
        failure: BaseException | None = None
        try:
            yield self
            await self._quiet()
        except BaseException as error:
            failure = error
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if failure is not None:
                with anyio.CancelScope(shield=True):
                    await self.cancel(f"{self.path} was left: {type(failure).__name__}")
            self._close(failure)

    async def _quiet(self) -> None:
        """Wait until nothing is going on in it or below it."""
        while going := self._cone():
            await going[0].over.wait()

    def _close(self, failure: BaseException | None) -> None:
        self._end("it has ended")
        self._account.close()
        self._tap.close()
        attributes: dict[str, AttributeValue | None] = {
            "gen_ai.usage.output_tokens": self.spent.tokens,
            "nnrp.model_calls": self.spent.model_calls,
        }
        self._span.end(attributes, error=None if failure is None else type(failure).__name__)

    async def cancel(self, reason: str = "", *, seconds: float | None = None) -> CancellationReport:
        """Cancel everything in it and below it, and wait for the receipts for so many seconds.

        By default 10; what is not confirmed by then has a receipt that says so. Nothing more can
        be started in the cone.
        """
        self._end(f"it was cancelled: {reason}" if reason else "it was cancelled")
        wait = self._scope.settings.cancel_seconds if seconds is None else seconds
        self.report = await cancel_cone(self._cone(), reason, wait)
        return self.report

    def _end(self, reason: str) -> None:
        if self._ended is None:
            self._ended = reason

    def _cone(self) -> list[Running[Any, Any]]:
        """Its streams and those below it that have not ended."""
        return [*self._live, *(each for child in self._children.values() for each in child._cone())]

    def _time_is_up(self) -> None:
        limit = self._own_limit
        assert limit is not None
        for running in self._cone():
            running.end(f"the time of {self.path} is over", lambda _receipt: limit.error())

    # --- what it starts -------------------------------------------------------------------------

    def new_id(self) -> str:
        """An id for a stream of this agent, given to nobody else."""
        return f"{self.path}#{next(self._scope.numbers)}"

    def start(
        self,
        work: Work[EventT, ResultT],
        *,
        kind: StreamKind = "tool",
        name: str = "",
        stream_id: str | None = None,
    ) -> Stream[EventT, ResultT]:
        """Start work as a stream of this agent.

        `stream_id` is one of `new_id`, for work that has to know it beforehand. Raises
        `BudgetExceeded` (a run counts for no fan-out), `DeadlineExceeded`, `TooManyStreams`,
        `AgentEnded`.
        """
        self._check_stream(kind)
        return self._launch(
            work, stream_id or self.new_id(), kind, name, self._new_span(kind, name)
        )

    def _launch(
        self,
        work: Work[EventT, ResultT],
        stream_id: str,
        kind: StreamKind,
        name: str,
        span: TraceSpan,
    ) -> Stream[EventT, ResultT]:
        return Stream(self._live.launch(work, stream_id, kind, name, span))

    def _new_span(self, kind: StreamKind, name: str, traceparent: str | None = None) -> TraceSpan:
        return self._live.span(kind, name, self.path, self._span_here(), traceparent)

    def _span_here(self) -> TraceSpan:
        """What is started here is below the stream of this agent that starts it, else below it."""
        running = current_span()
        return running if running is not None and self._live.has(running) else self._span

    def _check_stream(self, kind: StreamKind) -> None:
        """Raise what keeps a stream from starting."""
        self._scope.tasks.check_loop()
        self._check_open()
        if kind != "run":
            self._account.check_fan_out(self._fan_out)
        limit = self._scope.settings.streams
        if len(self._live) >= limit:
            raise TooManyStreams("streams", self.path, limit)

    def _check_child(self) -> None:
        """Raise what keeps an agent from being below this one."""
        self._scope.tasks.check_loop()
        self._check_open()
        self._account.check_child()
        self._account.check_fan_out(self._fan_out)
        settings = self._scope.settings
        if len(self._children) >= settings.children:
            raise TooManyStreams("agents below it", self.path, settings.children)
        if self._depth >= settings.depth:
            raise TooManyStreams("levels of agents above it", self.path, settings.depth)

    @property
    def _fan_out(self) -> int:
        return self._live.count("model", "tool") + len(self._children)

    def _check_open(self) -> None:
        node: AgentNode | None = self
        while node is not None:
            if node._ended is not None:
                raise AgentEnded(node.path, node._ended)
            node = node.parent
        if self._limit is not None and self._limit.over:
            raise self._limit.error()

    def _free_name(self, name: str) -> str:
        """The name of an agent to be below this one, with a number behind it if it is taken."""
        return free_name(name, self._children, whose="an agent's", above=f"{self.path}/")


def _checked(priority: int) -> int:
    least, most = PRIORITY_RANGE
    if type(priority) is not int or not least <= priority <= most:
        raise ValueError(f"priority={priority!r}: use a whole number from {least} to {most}")
    return priority
