"""Random histories of a few keys: one engine call at a time, one outcome each, nothing left."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st

from nnrp_sched.client import Chat, Outcome, Session
from nnrp_sched.client.connect import over_carrier
from nnrp_sched.errors import ConnectionLost
from nnrp_sched.server import ServerLimits
from nnrp_sched.transport import Carrier
from tests.support.serving import SECONDS, InMemory, scripted_server
from tests.support.stepped_engine import SteppedEngine, stepped

KEYS = 2
PEERS = 3
LIMITS = ServerLimits(key_grace_seconds=0.01, key_seconds=0.03, max_keys_per_principal=KEYS)

NUMBERS = st.integers(0, 5)
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, PEERS - 1), st.integers(0, KEYS - 1)),
    st.tuples(st.just("cancel"), NUMBERS, st.just(0)),
    st.tuples(st.just("abort"), NUMBERS, st.just(0)),
    st.tuples(st.just("lose"), st.integers(0, PEERS - 1), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 4), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([0, 12, 40]), st.just(0)),
)


class History:
    """What a few peers do with a few keys."""

    def __init__(self, served: InMemory, engine: SteppedEngine, stack: AsyncExitStack) -> None:
        self.served = served
        self.engine = engine
        self.stack = stack
        self.peers: dict[int, tuple[Carrier, Session]] = {}
        self.chats: list[Chat] = []
        self.ends: list[str] = []

    async def act(self, what: str, number: int, key: int, tasks: TaskGroup) -> None:
        match what:
            case "submit":
                session = await self.session(number)
                asked = stepped("a", "b", "c") | {"user": str(key)}
                chat = session.chat(asked, stream=True, idempotency_key=str(key))
                self.chats.append(chat)
                tasks.start_soon(self.read, chat)
            case "lose" if number in self.peers:
                carrier, _ = self.peers.pop(number)
                await carrier.aclose()
            case "cancel" | "abort" if self.chats:
                chat = self.chats[number % len(self.chats)]
                tasks.start_soon(self.end, getattr(chat, what))
            case "step":
                self.engine.let(number)
            case "wait":
                await anyio.sleep(number / 1000)
            case _:
                pass
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        await self.check()

    async def session(self, number: int) -> Session:
        if number not in self.peers:
            carrier = self.served.dial()
            connection = await self.stack.enter_async_context(over_carrier(carrier))
            session = await self.stack.enter_async_context(connection.session())
            self.peers[number] = (carrier, session)
        return self.peers[number][1]

    async def read(self, chat: Chat) -> None:
        try:
            outcome = await chat.result()
        except ConnectionLost:
            self.ends.append("lost")
            return
        self.ends.append(outcome.status)
        if outcome.status == "completed":
            assert outcome.text == "abc"

    @staticmethod
    async def end(how: Callable[[], Awaitable[Outcome]]) -> None:
        with suppress(ConnectionLost):
            await how()

    async def check(self) -> None:
        """A key never has two calls in the engine."""
        keys = {call.visible_id: call.body["user"] for call in self.engine.calls}
        live = Counter(keys[row.id] for row in (await self.engine.queue()).operations)
        assert all(count == 1 for count in live.values()), live
        assert len(self.served.server.keys) <= KEYS + len(live)


async def _play(actions: list[tuple[str, int, int]]) -> None:
    engine = SteppedEngine()
    before = asyncio.all_tasks()
    with anyio.fail_after(SECONDS):
        async with scripted_server(engine, LIMITS) as served, anyio.create_task_group() as tasks:
            async with AsyncExitStack() as stack:
                history = History(served, engine, stack)
                for what, number, key in actions:
                    await history.act(what, number, key, tasks)
                engine.let(3 * len(actions))
                while len(history.ends) < len(history.chats):
                    await anyio.lowlevel.checkpoint()
            keys = served.server.keys
            while len(keys) or keys.task_count or len(served.server.admission):
                await anyio.lowlevel.checkpoint()
            assert keys.kept_bytes == 0
            assert (await engine.queue()).operations == ()
        while asyncio.all_tasks() - before:
            await anyio.lowlevel.checkpoint()


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, min_size=1, max_size=25))
def test_whatever_happens_nothing_runs_twice_and_nothing_is_left(
    actions: list[tuple[str, int, int]],
) -> None:
    anyio.run(_play, actions)
