"""Programs that anything may happen to, and what must hold of them whatever has happened."""

import asyncio
import gc
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from msgspec import Struct

from nnrp_sched.engine.port import AbortBy
from nnrp_sched.engine.records import AbortReceipt, ChatBody, ChatCall, ServedCall
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import BackendError, NnrpSchedError
from nnrp_sched.profile import Event
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.model_request import OnLoss
from nnrp_sched_orchestrator.program_scope import AgentSettings
from nnrp_sched_orchestrator.records import ModelResult, Receipt
from nnrp_sched_orchestrator.running import StreamSettings
from nnrp_sched_orchestrator.stream import Stream
from tests.support.programs import SECONDS, Play, PlayedWork, orchestra, until
from tests.support.server_stage import Host, quick
from tests.support.serving import script

Reading = Literal["result", "events", "slowly", "not at all", "forgotten"]
Leaving = Literal["in order", "by an exception", "by cancellation"]

SLOTS = 6
SETTINGS = AgentSettings(
    stream=StreamSettings(buffer_events=8, stall_seconds=0.02, stop_seconds=4.0)
)
LIMITS = ServerLimits(key_grace_seconds=0.05, key_seconds=0.5)
POOL = quick(sessions=2, max_in_flight=12)

SCRIPTS: dict[str, dict[str, Any]] = {
    "short": script(text=["one ", "two ", "three"]),
    "long": script(text=" w", repeat=40),
    "endless": script(text=["so ", "it ", "goes"], hold=True),
    "failing": script(text=" w", repeat=20, fail_after=5),
    "refused": script(text="no", fail_status=503),
    "tools": script(tool_calls=[{"name": "read", "arguments": '{"path": "somewhere"}'}]),
}


class Boom(Exception):
    """A program's own fault."""


class LedgerEngine(ScriptedEngine):
    """Knows of each call how it ended, and of each abort what it said."""

    def __init__(self) -> None:
        super().__init__(slots=SLOTS)
        self.started: list[str] = []
        self.served: dict[str, list[ServedCall]] = defaultdict(list)
        self.receipts: dict[str, list[AbortReceipt]] = defaultdict(list)

    async def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """Serve, and note how it ended."""
        told, name = call.served, call.visible_id

        def served(facts: ServedCall) -> None:
            self.served[name].append(facts)
            if told is not None:
                told(facts)

        self.started.append(name)
        try:
            async for chunk in super().stream(msgspec.structs.replace(call, served=served)):
                yield chunk
        except BackendError:
            if not self.served[name]:
                self.served[name].append(ServedCall(reason="refused"))
            raise

    async def abort_operations(self, ids: Any, *, by: AbortBy) -> list[AbortReceipt]:
        """Abort, and note what that did."""
        receipts = await super().abort_operations(ids, by=by)
        for receipt in receipts:
            self.receipts[receipt.request_id].append(receipt)
        return receipts


class Actor:
    """One agent, in a task of its own that leaves its block when told."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.leaving: Leaving | None = None
        self.told = anyio.Event()
        self.gone = anyio.Event()
        self.scope = anyio.CancelScope()
        self.children: list[Actor] = []


class Started(Struct, eq=False):
    """A stream that somebody held on to."""

    stream: Stream[Event, ModelResult]
    text: str
    """What it says at most."""
    on_loss: OnLoss


class World:
    """One orchestrator, its programs, and its servers."""

    def __init__(self, play: Play, tasks: TaskGroup, engines: list[LedgerEngine]) -> None:
        self.play = play
        self.engines = engines
        """One for each time that a server was started."""
        self.programs: list[Actor] = []
        self.actors: list[Actor] = []
        """Those whose blocks were not left."""
        self.streams: list[Started] = []
        self.tools: list[PlayedWork] = []
        self.faults: list[BaseException] = []
        """What nobody expected."""
        self.receipts: list[Receipt] = []
        self.losses = 0
        self.agents = 0
        """How many there were, programs included."""
        self._tasks = tasks

    # --- what may happen ------------------------------------------------------------------------

    async def open(self, parent: Actor | None, budget: Budget) -> Actor | None:
        """Begin a program, or an agent below one; None when there may be none."""
        ready = anyio.Event()
        made: list[Actor] = []

        async def live() -> None:
            try:
                manager = (
                    self.play.orchestrator.program("p", budget=budget)
                    if parent is None
                    else parent.agent.agent("a", budget=budget)
                )
                with anyio.CancelScope() as scope:
                    async with manager as agent:
                        actor = Actor(agent)
                        actor.scope = scope
                        made.append(actor)
                        ready.set()
                        await actor.told.wait()
                        if actor.leaving == "by an exception":
                            raise Boom
                        if actor.leaving == "by cancellation":
                            await anyio.sleep_forever()
            except (NnrpSchedError, Boom):
                pass
            except Exception as error:
                self.faults.append(error)
            finally:
                ready.set()
                for actor in made:
                    self.receipts += actor.agent.receipts
                    actor.gone.set()

        self._tasks.start_soon(live)
        await ready.wait()
        if not made:
            return None
        (self.programs if parent is None else parent.children).append(made[0])
        self.actors.append(made[0])
        self.agents += 1
        return made[0]

    async def chat(self, actor: Actor, kind: str, reading: Reading, on_loss: OnLoss) -> None:
        """Call a model, and read it in some way."""
        try:
            stream = actor.agent.chat(SCRIPTS[kind], on_loss=on_loss)
        except NnrpSchedError:
            return
        if reading == "forgotten":
            del stream
            gc.collect(0)
            return
        self.streams.append(Started(stream, _said(kind), on_loss))
        if reading != "not at all":
            self._tasks.start_soon(self._read, stream, reading)

    async def _read(self, stream: Stream[Event, ModelResult], reading: Reading) -> None:
        try:
            if reading == "result":
                await stream.result()
                return
            async for _ in stream:
                for _ in range(20 if reading == "slowly" else 0):
                    await checkpoint()
        except NnrpSchedError:
            pass
        except Exception as error:
            self.faults.append(error)

    async def tool(self, actor: Actor, holds: bool) -> None:
        """Start a tool."""
        work = PlayedWork("some", "output", holds=holds)
        try:
            actor.agent.start(work, kind="tool", name="t")
        except NnrpSchedError:
            return
        self.tools.append(work)

    async def cancel_stream(self, started: Started) -> None:
        """Cancel one stream."""
        receipt = await started.stream.cancel("this one")
        assert receipt.stream_id == started.stream.id

    async def cancel_cone(self, actor: Actor) -> None:
        """Cancel an agent and everything below it."""
        report = await actor.agent.cancel("this cone")
        assert report.seconds < SECONDS

    async def leave(self, actor: Actor, how: Leaving) -> None:
        """Let an agent's block be left, those below it first."""
        for child in list(actor.children):
            await self.leave(child, how)
        if how == "in order":
            await actor.agent.cancel("it is to leave")
        actor.leaving = how
        actor.told.set()
        if how == "by cancellation":
            actor.scope.cancel()
        with anyio.fail_after(SECONDS):
            await actor.gone.wait()
        if actor in self.actors:
            self.actors.remove(actor)

    async def cut(self, at: int) -> None:
        """Let the connections to a server be lost."""
        self.losses += 1
        await self._host(at).cut()

    async def restart(self, at: int) -> None:
        """Kill a server and start another one in its place."""
        self.losses += 1
        await self._host(at).kill()
        await self._host(at).start()

    def _host(self, at: int) -> Host:
        return self.play.hosts[at % len(self.play.hosts.hosts)]

    async def wait(self, turns: int) -> None:
        """Let things happen."""
        for _ in range(turns):
            await checkpoint()

    # --- what must hold -------------------------------------------------------------------------

    def check(self) -> None:
        """At any time: no fault, and no budget passed."""
        assert self.faults == []
        for actor in self.actors:
            agent = actor.agent
            limit, spent = agent.budget.tokens, agent.spent
            assert limit is None or spent.tokens <= limit, (agent.path, spent)
            calls = agent.budget.model_calls
            assert calls is None or spent.model_calls <= calls, (agent.path, spent)

    async def finish(self, how: Leaving) -> None:
        """Leave everything; nothing of it is left then."""
        for program in self.programs:
            if not program.gone.is_set():
                await self.leave(program, how)
        pool = self.play.orchestrator.pool
        assert (pool.in_flight, pool.waiting) == (0, 0)
        await self.play.idle()
        self.check()
        for started in self.streams:
            _check_stream(started)
        for work in self.tools:
            assert len(work.stops) <= 1
        self._check_engines()

    def _check_engines(self) -> None:
        for engine in self.engines:
            for name in engine.started:
                assert len(engine.served[name]) <= 1, f"{name} has ended twice"
        if self.losses:
            return  # Names are given anew by each connection, and a key may join two of them.
        engines = dict(zip(self.play.hosts.hosts, self.engines, strict=True))
        for engine in self.engines:
            for name in engine.started:
                assert len(engine.served[name]) == 1, f"{name} has not ended"
        for started in self.streams:
            self._check_completed(started.stream.partial, engines)
        for receipt in self.receipts:
            if receipt.operation is None or receipt.endpoint is None:
                assert receipt.tokens in (0, None)
            elif receipt.accepted:
                engine = engines[receipt.endpoint]
                told = engine.receipts[receipt.operation][0]
                assert (receipt.state, receipt.tokens, receipt.authoritative) == (
                    told.state,
                    told.tokens,
                    told.authoritative,
                )
                (served,) = engine.served[receipt.operation]
                assert (served.reason, served.tokens) == ("abort", told.tokens)

    def _check_completed(self, result: ModelResult, engines: dict[str, LedgerEngine]) -> None:
        if result.status == "completed":
            assert result.receipt is not None
            assert result.usage is not None
            engine = engines[result.receipt.endpoint or ""]
            (served,) = engine.served[result.receipt.operation or ""]
            assert served.reason is None
            assert served.tokens == result.usage["completion_tokens"] == result.receipt.tokens


def _said(kind: str) -> str:
    members: dict[str, Any] = SCRIPTS[kind]["scripted"]
    pieces: str | list[str] = members.get("text", "")
    repeat: int = members.get("repeat", 1)
    return "".join(pieces) * repeat


def _check_stream(started: Started) -> None:
    """One outcome, the same for everybody, with a receipt and a beginning of the text."""
    stream = started.stream
    result, receipt = stream.partial, stream.receipt
    assert receipt is not None, stream.id
    assert stream.state.kind == "done"
    assert started.text.startswith(result.text), (started.text, result.text)
    assert receipt.authoritative or receipt.unconfirmed
    if result.status == "completed":
        assert result.body is not None
        assert not receipt.accepted
    if result.status == "failed":
        assert result.error is not None


@asynccontextmanager
async def world(servers: int = 1) -> AsyncGenerator[World, None]:
    """A world in which anything may happen; no task of it is left at the end."""
    before = asyncio.all_tasks()
    engines: list[LedgerEngine] = []

    def prepare() -> tuple[ScriptedEngine, ServerLimits]:
        engines.append(LedgerEngine())
        return engines[-1], LIMITS

    async with orchestra(prepare, count=servers, pool=POOL, settings=SETTINGS) as play:
        async with anyio.create_task_group() as tasks:
            yield World(play, tasks, engines)
        for host in play.hosts.hosts.values():
            await host.stop()
    await until(lambda: asyncio.all_tasks() <= before)
