"""Agents: what a program is made of.

```python
async with program.agent("explorer", budget=Budget(tokens=2000)) as agent:
    print(await agent.chat("Where is the session opened?").text())
```

A program is the agent at the root. Leaving an agent's block waits for its streams; leaving it by an
exception, or being cancelled in it, cancels everything below it and waits for the receipts.
"""

import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from nnrp_sched.profile import Event
from nnrp_sched.profile.workflow import Workflow
from nnrp_sched_orchestrator.agent_events import AgentEvents
from nnrp_sched_orchestrator.agent_node import AgentNode
from nnrp_sched_orchestrator.agent_run import AgentRun, RunSettings
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.model_request import ModelRequest, OnLoss, chat_body
from nnrp_sched_orchestrator.model_stream import ModelWork
from nnrp_sched_orchestrator.records import ModelResult, ToolCall
from nnrp_sched_orchestrator.remote_tool import pooled, remote_tools
from nnrp_sched_orchestrator.run_records import RunEvent, RunResult
from nnrp_sched_orchestrator.stream import Stream
from nnrp_sched_orchestrator.time_limit import deadline, earliest
from nnrp_sched_orchestrator.tool_call import ToolLimits
from nnrp_sched_orchestrator.tool_stream import ToolEvent, ToolResult, ToolWork
from nnrp_sched_orchestrator.tools import AsyncTool, Tool, toolbox


class Agent(AgentNode):
    """One agent of a program. Made by `Orchestrator.program` and `Agent.agent`."""

    @property
    def children(self) -> tuple["Agent", ...]:
        """The agents directly below it that have not ended."""
        return tuple(child for child in self._children.values() if isinstance(child, Agent))

    @asynccontextmanager
    async def agent(
        self,
        name: str,
        *,
        budget: Budget | None = None,
        priority: int | None = None,
        deadline_seconds: float | None = None,
    ) -> AsyncGenerator["Agent", None]:
        """Have an agent below this one for the time of the block.

        Where an agent of that name is at work already, the new one gets a number behind it. The
        deadline, in seconds from now, ends streams of it and below it with `DeadlineExceeded`.
        Raises `BudgetExceeded` when depth or fan-out allow none, `TooManyStreams`, `AgentEnded`,
        and `ValueError` for a name that is none.
        """
        self._check_child()
        child = Agent(
            self._scope,
            self._free_name(name),
            self,
            budget=budget,
            priority=priority,
            deadline_seconds=deadline_seconds,
        )
        self._children[child.name] = child
        try:
            async with child.at_work():
                yield child
        finally:
            del self._children[child.name]

    def chat(
        self,
        messages: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str,
        *,
        model: str | None = None,
        on_loss: OnLoss = "fail",
        idempotency_key: str | None = None,
        affinity: str | None = None,
        role: str | None = None,
        step: str | int | None = None,
        deadline_seconds: float | None = None,
        traceparent: str | None = None,
        **body: Any,
    ) -> Stream[Event, ModelResult]:
        """Call a model; it starts at once.

        `messages` are what a user says, the messages of a chat, or a whole OpenAI chat body, to
        which `body` adds members. Without a model, the first one that the server names. `on_loss`
        says what becomes of the call when its connection is lost: it fails with `OperationLost`, or
        is submitted again under its idempotency key where that cannot run it twice. The same
        `affinity` gets the same endpoint; by default one call after another of an agent does. The
        deadline counts from now, waiting included. With a W3C `traceparent`, the call is a child of
        that span instead of the agent's. The agent's token budget, and those above it, may shorten
        the answer; it then fails with `BudgetExceeded`, which has what came.

        Raises `BudgetExceeded`, `DeadlineExceeded`, `TooManyStreams` and `AgentEnded` when it may
        not start.
        """
        document = chat_body(messages, model, body)
        stream_id = self.new_id()
        limit = deadline(stream_id, deadline_seconds)
        self._check_stream("model")
        self._account.count_call()
        told = earliest((limit, self._limit))
        name = str(document.get("model") or "")
        span = self._new_span("model", name, traceparent)
        if affinity is None and not self._live.count("model"):
            affinity = self.path  # A conversation keeps its prefix cache.
        if idempotency_key is None and on_loss == "resubmit":
            idempotency_key = secrets.token_hex(16)
        request = ModelRequest(
            document,
            program=self._scope.name,
            agent=self.path,
            workflow=self._workflow(role, step),
            weight=self._scope.weight,
            priority=self.priority,
            affinity=affinity,
            on_loss=on_loss,
            idempotency_key=idempotency_key,
            traceparent=span.carried,
            limit=told,
        )
        work = ModelWork(
            stream_id,
            request,
            pool=self._scope.pool,
            account=self._account,
            settlements=self._scope.settlements,
            abort_seconds=self._scope.settings.stream.stop_seconds / 2,
        )
        stream = self._launch(work, stream_id, "model", name, span)
        if limit is not None:
            why = "its deadline is over"
            self._live.end_at(stream_id, limit.at, why, lambda _receipt: limit.error())
        return stream

    def call_tool(
        self,
        tool: Tool | AsyncTool,
        arguments: Mapping[str, Any] | str = "{}",
        *,
        limits: ToolLimits | None = None,
    ) -> Stream[ToolEvent, ToolResult]:
        """Call a tool without a model having asked for it; it starts at once.

        `arguments` are an object, or its JSON text. Raises `ToolDefinitionError` for what is no
        tool, and as `start` does.
        """
        (found,) = toolbox([tool]).values()
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        stream_id = self.new_id()
        call = ToolCall(0, f"call-{stream_id}", found.name, text)
        work = ToolWork(stream_id, found, call, limits)
        return self.start(work, kind="tool", name=found.name, stream_id=stream_id)

    async def remote_tools(
        self, *, prefix: str = "", limits: ToolLimits | None = None
    ) -> dict[str, Tool]:
        """The tools that the orchestrator's servers host, by name.

        They are called over the sessions that carry the model calls, in turn with them. All servers
        must host them; for tools of another host see `remote_tool.remote_tools`. Raises
        `ProfileError` when there are none, and `QueueFull` and `EndpointsUnavailable`.
        """
        sessions = pooled(self._scope.pool, self._scope.name, self.path)
        return await remote_tools(sessions, prefix=prefix, limits=limits)

    def run(
        self,
        messages: str | Iterable[Mapping[str, Any]],
        tools: Iterable[Tool | AsyncTool] | Mapping[str, Tool] = (),
        *,
        name: str = "",
        settings: RunSettings | None = None,
        **options: Any,
    ) -> Stream[RunEvent, RunResult]:
        """Ask the model, run the tools that it calls, hand back their results, until it is done.

        Model calls and tools are streams of this agent; what they tell comes in one order from the
        stream of the run. `options` go to each model call. Raises `ToolDefinitionError`,
        `ValueError` for several answers at once (`n`), and as `start` does.
        """
        stream_id = self.new_id()
        work = AgentRun(stream_id, self, messages, tools, settings=settings, **options)
        return self.start(work, kind="run", name=name, stream_id=stream_id)

    def events(self) -> AgentEvents:
        """The events of its own streams from now on, in one order, each with its number.

        A stream whose handle is kept need not be read for it. Up to 1024 events wait for
        the reader; the streams wait for it, too, but not for ever. Raises `RuntimeError` while
        somebody else listens.
        """
        return self._tap.listen()

    def _workflow(self, role: str | None, step: str | int | None) -> Workflow:
        below = self.path.partition("/")[2]
        return Workflow(
            program=self._scope.name,
            agent=below or None,
            parent=below.rpartition("/")[0] or None,
            step=step,
            role=role,
        )


Program = Agent
"""The agent at the root of a tree; its name is the program's."""
