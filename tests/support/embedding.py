"""An agent on a server, for clients of other frameworks, and what can be seen of its calls."""

import gc
import itertools
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from msgspec.structs import replace
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from opentelemetry.trace import TracerProvider

from nnrp_sched.engine.records import ChatBody, ChatCall
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.embed.gateway import Gateway
from nnrp_sched_orchestrator.orchestrator import Orchestrator
from nnrp_sched_orchestrator.program_scope import AgentSettings
from nnrp_sched_orchestrator.records import Receipt
from nnrp_sched_orchestrator.running import StreamSettings
from tests.support.server_stage import Host, quick, stage
from tests.support.stepped_engine import SteppedEngine

SECONDS = 20
_TURNS = 1000
"""Of the event loop, between two collections of garbage."""


def asked(document: dict[str, Any]) -> dict[str, Any]:
    """A chat body, as the arguments of `chat.completions.create`."""
    extra = {name: document[name] for name in ("scripted",) if name in document}
    known = {name: value for name, value in document.items() if name not in extra}
    return {**known, "extra_body": extra}


async def ask(client: AsyncOpenAI, document: dict[str, Any], **members: Any) -> Any:
    """The answer to a chat body with some more members, whole or as it comes."""
    create: Any = client.chat.completions.create
    return await create(**asked(document), **members)


async def ask_whole(
    client: AsyncOpenAI, document: dict[str, Any], **members: Any
) -> ChatCompletion:
    """The answer to a chat body, whole."""
    answer = await ask(client, document, **members)
    assert isinstance(answer, ChatCompletion)
    return answer


async def ask_streamed(
    client: AsyncOpenAI, document: dict[str, Any], **members: Any
) -> AsyncStream[ChatCompletionChunk]:
    """The answer to a chat body, as it comes."""
    stream: AsyncStream[ChatCompletionChunk] = await ask(client, document, stream=True, **members)
    return stream


async def until_idle(host: Host) -> None:
    """Wait until a server has no operation."""
    assert host.server is not None
    with anyio.fail_after(SECONDS):
        while len(host.server.admission):
            await checkpoint()


async def until_called(engine: SteppedEngine, count: int) -> None:
    """Wait until an engine had so many calls."""
    with anyio.fail_after(SECONDS):
        while len(engine.calls) < count:
            await checkpoint()


class TurnsEngine(SteppedEngine):
    """Answers each call with the next of some scripts, whatever it asks for."""

    def __init__(self, turns: Iterable[dict[str, Any]]) -> None:
        super().__init__()
        self._turns = iter(turns)

    async def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """Serve the next turn."""
        turn = replace(call, body={**call.body, "scripted": next(self._turns)})
        async for chunk in super().stream(turn):
            yield chunk


class Embedded:
    """A program over one server."""

    def __init__(self, host: Host, engine: SteppedEngine, agent: Agent) -> None:
        self.host = host
        self.engine = engine
        self.agent = agent
        self.gateway: Gateway | None = None
        """What the client under test leads to."""

    async def idle(self) -> None:
        """Wait until the server has no operation."""
        await until_idle(self.host)

    async def calls(self, count: int) -> None:
        """Wait until the engine had so many calls."""
        await until_called(self.engine, count)

    async def given_up(self, count: int = 1) -> None:
        """Wait until so many calls go on without their clients."""
        gateway = self.gateway
        assert gateway is not None
        with anyio.fail_after(SECONDS):
            while len(gateway.calls.unclaimed) < count:
                await checkpoint()

    async def stopped(self, *, forgotten: bool = False) -> Receipt:
        """The proof of the one call that was stopped; waits for it.

        Nobody holds the call any more when it is `forgotten`.
        """
        with anyio.fail_after(SECONDS):
            for turn in itertools.count():
                if self.agent.receipts:
                    break
                await checkpoint()
                if forgotten and turn % _TURNS == 0:
                    # The clients' generators are cycles, and let go of each other one by one.
                    gc.collect()
        (receipt,) = self.agent.receipts
        return receipt


@asynccontextmanager
async def embedded(
    *,
    slots: int | None = None,
    turns: Iterable[dict[str, Any]] | None = None,
    stream: StreamSettings | None = None,
    limits: ServerLimits | None = None,
    budget: Budget | None = None,
    provider: TracerProvider | None = None,
) -> AsyncGenerator[Embedded, None]:
    """A server at a port of its own, on an engine that goes on when it is told to.

    With `turns`, these scripts are its answers, one after the other.
    """
    engine = SteppedEngine(slots=slots) if turns is None else TurnsEngine(turns)
    settings = AgentSettings(stream=stream or StreamSettings())
    # An endpoint that is gone is to be missed soon.
    pool = quick(unavailable_seconds=0.1)
    async with (
        stage(prepare=lambda: (engine, limits or ServerLimits()), tcp=True) as hosts,
        Orchestrator.connect(
            hosts[0].name, settings=settings, pool_settings=pool, provider=provider
        ) as orchestrator,
        orchestrator.program("embedded", budget=budget) as program,
    ):
        yield Embedded(hosts[0], engine, program)
