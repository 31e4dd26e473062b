"""Tools that another process hosts, called over a session: multiplexed with its chats."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import anyio
import msgspec
from msgspec import Struct

from nnrp_sched.client import Chat, Outcome, Session
from nnrp_sched.client.control import answer_of, told
from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile.events import ToolOutputDelta, ToolStopped
from nnrp_sched.profile.scheduling import AbortReceipt
from nnrp_sched.profile.tools import (
    TOOLS_CALL,
    TOOLS_LIST,
    CallBody,
    ToolAnswer,
    ToolDescription,
    ToolList,
    build_tools,
)
from nnrp_sched_orchestrator.errors import ToolFailed
from nnrp_sched_orchestrator.pool import Pool
from nnrp_sched_orchestrator.tool_call import ToolLimits
from nnrp_sched_orchestrator.tool_schema import check_name
from nnrp_sched_orchestrator.tools import EmitOutput, Tool, ToolEnd, ToolRun, toolbox

_STOP_SECONDS: Final = 6.0
"""How long a host may take to say that a tool is gone; it gives the tool itself 5 s."""


class Lent(Struct, frozen=True):
    """A session for one call."""

    session: Session
    endpoint: str
    """Where it leads, for receipts."""


Borrow = Callable[[], AbstractAsyncContextManager[Lent]]
"""Gives a session for one call, such as a pool's lease."""


def pooled(pool: Pool, program: str, agent: str) -> Borrow:
    """Sessions of a pool, one lease for each call: as fair, and as bounded, as model calls.

    Every endpoint of the pool has to host the tools.
    """

    @asynccontextmanager
    async def borrow() -> AsyncGenerator[Lent, None]:
        async with pool.queue(program, agent) as lease:
            yield Lent(lease.session, lease.endpoint)

    return borrow


async def remote_tools(
    session: Session | Borrow,
    *,
    endpoint: str = "remote",
    prefix: str = "",
    limits: ToolLimits | None = None,
) -> dict[str, Tool]:
    """The tools of the host behind a session, by name.

    Instead of a session, which its tools do not outlive, there may be something that gives one for
    each call. `endpoint` stands for a session in receipts, `prefix` before each name, `limits` are
    asked of the host. Raises `ProfileError` when the server hosts no tools, `ConnectionLost`, and
    `ToolDefinitionError` for names that models cannot use.
    """
    borrow = _always(Lent(session, endpoint)) if isinstance(session, Session) else session
    wanted = limits or ToolLimits()
    async with borrow() as lent:
        found = await answer_of(Chat(lent.session, build_tools(TOOLS_LIST, {})), ToolList)
    return toolbox(_tool(each, borrow, prefix, wanted) for each in found.tools)


def _always(lent: Lent) -> Borrow:
    @asynccontextmanager
    async def borrow() -> AsyncGenerator[Lent, None]:
        yield lent

    return borrow


def _tool(told_of: ToolDescription, borrow: Borrow, prefix: str, limits: ToolLimits) -> Tool:
    name = f"{prefix}{told_of.name}"
    check_name(name)

    def start(arguments: str) -> ToolRun:
        body = CallBody(
            told_of.name,
            arguments,
            max_output_bytes=limits.output_bytes,
            max_seconds=limits.seconds,
        )
        return RemoteRun(body, borrow)

    return Tool(name, told_of.description, told_of.parameters, start)


class RemoteRun:
    """One call of a tool on another host."""

    def __init__(self, body: CallBody, borrow: Borrow) -> None:
        self._body = body
        self._borrow = borrow
        self._receipt: AbortReceipt | None = None
        self._endpoint = "remote"
        self._operation: str | None = None

    @property
    def endpoint(self) -> str | None:
        """Where it was sent, once it was."""
        return self._endpoint

    async def run(self, emit: EmitOutput) -> ToolEnd:
        """Call it. Raises `ToolFailed` when the host refuses or is lost.

        When cancelled, the host is told, and asked what became of the tool.
        """
        async with self._borrow() as lent:
            self._endpoint = lent.endpoint
            chat = Chat(lent.session, build_tools(TOOLS_CALL, told(self._body) or {}))
            try:
                async for event in chat:
                    if isinstance(event, ToolOutputDelta):
                        await emit(event.delta)
            except NnrpSchedError as error:
                # It was told to stop the tool, if anything can still be told to it.
                self._receipt = _unknown(chat, 0.0)
                raise ToolFailed(f"the tool host was lost: {error}") from error
            except BaseException:
                with anyio.CancelScope(shield=True):
                    self._receipt = await _stopped(chat)
                raise
        assert chat.outcome is not None
        self._operation = chat.name
        return _end(chat.outcome)

    async def stop(self, reason: str) -> AbortReceipt:
        """What the host said of its end; not authoritative when it has said nothing."""
        if self._receipt is not None:
            return self._receipt
        return AbortReceipt(self._operation or "", "admitting", True, True, None, 0.0)


async def _stopped(chat: Chat) -> AbortReceipt:
    """Cancel a call and read on to what its host says of that; never waits for ever."""
    began = anyio.current_time()
    if chat.name is None:
        await chat.cancel()
        return AbortReceipt("", "admitting", True, True, None, 0.0)
    found: AbortReceipt | None = None
    chat.ask_cancel("nobody waits for it any more")
    try:
        with anyio.move_on_after(_STOP_SECONDS):
            async for event in chat:
                if isinstance(event, ToolStopped):
                    found = event.receipt
    except NnrpSchedError:
        # The host is gone or does not make sense: nothing is known, which the receipt says.
        found = None
    latency = (anyio.current_time() - began) * 1000
    if found is None and chat.outcome is not None and chat.outcome.status == "completed":
        found = AbortReceipt(chat.name, "finished", False, True, None, latency)
    if found is None:
        return _unknown(chat, latency)
    return msgspec.structs.replace(found, request_id=chat.name, latency_ms=latency)


def _unknown(chat: Chat, latency_ms: float) -> AbortReceipt:
    return AbortReceipt(chat.name or "", "unknown", False, False, None, latency_ms)


def _end(outcome: Outcome) -> ToolEnd:
    if outcome.error is not None:
        raise ToolFailed(outcome.error.message)
    if outcome.body is None:
        raise ToolFailed(f"the tool host ended the call as {outcome.status}: {outcome.reason}")
    try:
        answer = msgspec.convert(outcome.body, ToolAnswer)
    except msgspec.ValidationError as error:
        raise ToolFailed(f"the tool host gave an answer of an unknown form: {error}") from error
    failed = answer.status == "failed"
    return ToolEnd(
        (answer.message or "it failed") if failed else "",
        exit_code=answer.exit_code,
        stderr=answer.stderr,
        output_bytes=answer.output_bytes,
    )
