"""Aborts: gathered into one request, answered or named as unconfirmed, never waited for long."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nnrp_sched.client import Chat
from nnrp_sched.engine.port import AbortBy
from nnrp_sched.engine.records import AbortReceipt
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.aborts import Aborts
from nnrp_sched_orchestrator.pool import Pool
from nnrp_sched_orchestrator.pool_records import Aborted
from nnrp_sched_orchestrator.ticket import Lease
from tests.support.plain_server import plain_pool
from tests.support.server_stage import SECONDS, Host, quick, stage, until
from tests.support.serving import body, script

pytestmark = pytest.mark.anyio

HELD: dict[str, Any] = script(text="one two", hold=True)


class Engine(ScriptedEngine):
    """Counts the requests to abort, and answers them when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[int] = []
        self.may_answer = anyio.Event()
        self.may_answer.set()

    async def abort_operations(self, ids: Sequence[str], *, by: AbortBy) -> list[AbortReceipt]:
        self.requests.append(len(ids))
        await self.may_answer.wait()
        return await super().abort_operations(ids, by=by)


class Scene:
    """A pool on one server, and what it may be asked."""

    def __init__(self, pool: Pool, engine: Engine, host: Host) -> None:
        self.pool = pool
        self.engine = engine
        self.host = host

    async def run(self, count: int, then: Callable[[list[tuple[Lease, Chat]]], "Any"]) -> None:
        """Hold so many calls that have begun, do something, and let them go."""
        held: list[tuple[Lease, Chat]] = []
        done = anyio.Event()

        async def call() -> None:
            async with self.pool.queue("p", "a") as lease:
                chat = lease.session.chat(HELD, stream=True)
                await anext(chat)
                held.append((lease, chat))
                await done.wait()

        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(call)
            await until(lambda: len(held) == count)
            await then(held)
            done.set()
        assert (self.pool.in_flight, self.pool.waiting) == (0, 0)


@asynccontextmanager
async def scene(**settings: Any) -> AsyncGenerator[Scene, None]:
    engine = Engine()
    async with stage(1, lambda: (engine, ServerLimits())) as hosts:
        async with hosts.pool(quick(**settings)) as pool:
            with anyio.fail_after(SECONDS):
                yield Scene(pool, engine, hosts[0])
        engine.may_answer.set()


async def abort_all(held: list[tuple[Lease, Chat]], seconds: float = SECONDS) -> list[Aborted]:
    """Abort all of them at once, each by itself."""
    answers: list[Aborted] = []

    async def one(lease: Lease, chat: Chat) -> None:
        answers.append(await lease.abort(chat, "enough", seconds=seconds))

    async with anyio.create_task_group() as tasks:
        for lease, chat in held:
            tasks.start_soon(one, lease, chat)
    return answers


async def test_aborts_of_one_turn_go_out_as_one_request_and_each_has_its_receipt() -> None:
    async with scene() as at:

        async def abort(held: list[tuple[Lease, Chat]]) -> None:
            answers = await abort_all(held)
            assert at.engine.requests == [12]
            assert {each.receipt.request_id for each in answers} == {chat.name for _, chat in held}
            for each in answers:
                assert each.unconfirmed is None
                assert each.receipt.state == "running"
                assert each.receipt.accepted
                assert each.receipt.authoritative
                assert each.receipt.tokens == 2
            assert (await at.engine.queue()).operations == ()

        await at.run(12, abort)


async def test_who_asks_a_turn_later_goes_along() -> None:
    async with scene() as at:

        async def ask(name: str, turns: int) -> None:
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            assert list(await at.pool.abort("host-0", [name])) == [name]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "9.1", 0)
            tasks.start_soon(ask, "9.2", 1)
        assert at.engine.requests == [2]


async def test_more_names_than_one_request_takes_go_out_in_several() -> None:
    async with scene() as at:
        names = [f"9.{number}" for number in range(2500)]
        receipts = await at.pool.abort("host-0", names)
        assert sorted(at.engine.requests) == [452, 1024, 1024]
        assert list(receipts) == names
        assert {receipt.state for receipt in receipts.values()} == {"unknown"}


async def test_an_abort_of_what_has_ended_or_was_never_sent_asks_nobody() -> None:
    async with scene() as at, at.pool.queue("p", "a") as lease:
        ended = lease.session.chat(body("well"), stream=True)
        await ended.result()
        told = await lease.abort(ended)
        assert (told.receipt.state, told.receipt.accepted) == ("finished", False)
        never = lease.session.chat(body(), stream=True)
        told = await lease.abort(never)
        assert (told.receipt.state, told.receipt.accepted) == ("admitting", True)
        assert told.receipt.tokens == 0
        assert (await never.result()).status == "cancelled"
        assert at.engine.requests == []


async def test_t16_an_engine_that_does_not_answer_is_not_waited_for_longer_than_allowed() -> None:
    async with scene() as at:
        at.engine.may_answer = anyio.Event()

        async def abort(held: list[tuple[Lease, Chat]]) -> None:
            (told,) = await abort_all(held, seconds=0.02)
            assert not told.receipt.authoritative
            assert told.unconfirmed is not None
            assert "0.02 s" in told.unconfirmed
            at.engine.may_answer.set()
            await until(lambda: held[0][1].outcome is not None or held[0][0].session.in_flight == 0)

        await at.run(1, abort)


async def test_a_request_that_takes_too_long_by_the_settings_is_given_up() -> None:
    async with scene(abort_seconds=0.02) as at:
        at.engine.may_answer = anyio.Event()
        assert await at.pool.abort("host-0", ["9.1"], SECONDS) == {}
        at.engine.may_answer.set()
        assert list(await at.pool.abort("host-0", ["9.1"])) == ["9.1"]


async def test_an_abort_on_a_lost_connection_touches_nothing_on_the_new_one() -> None:
    """After a restart of the server the same names are given to other operations."""
    async with scene() as at:

        async def abort(held: list[tuple[Lease, Chat]]) -> None:
            ((lease, chat),) = held
            await at.host.kill()
            await until(lambda: at.pool.endpoints[0].state == "down")
            await at.host.start()
            await until(lambda: at.pool.endpoints[0].state == "up")
            told = await lease.abort(chat)
            assert at.engine.requests == []
            assert told.unconfirmed is not None
            assert told.unconfirmed.startswith("the connection was lost")
            assert not told.receipt.authoritative

        await at.run(1, abort)


async def test_aborts_by_name_on_an_endpoint_that_is_down_have_no_receipts() -> None:
    async with scene() as at:
        await at.host.kill()
        await until(lambda: at.pool.endpoints[0].state == "down")
        assert await at.pool.abort("host-0", ["1.1"]) == {}


async def test_who_asks_when_the_pool_is_closed_is_told_so_at_once() -> None:
    aborts = Aborts(SECONDS)
    async with scene() as at, at.pool.queue("p", "a") as lease:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(aborts.run)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
            assert await aborts.ask(lease.session, ["1.1"], SECONDS) == ({}, "the pool was closed")


async def test_a_server_without_control_requests_is_told_by_cancel_and_nothing_is_claimed() -> None:
    async with plain_pool() as (pool, server), pool.queue("p", "a") as lease:
        assert not lease.features.control
        assert lease.features.models == ()
        chat = lease.session.chat(body(), stream=True)
        await anext(chat)
        told = await lease.abort(chat, "enough", seconds=SECONDS)
        assert told.receipt.accepted
        assert not told.receipt.authoritative
        assert told.unconfirmed == "the server has no operation.abort; it was told by CANCEL"
        assert server.cancelled == ["enough"]
        assert await pool.abort(lease.endpoint, [chat.name or ""]) == {}
        assert pool.place(lease.endpoint, chat.name or "") is None


async def test_a_server_that_does_not_answer_a_cancel_leaves_the_end_unconfirmed() -> None:
    async with plain_pool(answers_cancel=False) as (pool, server), pool.queue("p", "a") as lease:
        chat = lease.session.chat(body(), stream=True)
        await anext(chat)
        with anyio.fail_after(SECONDS):
            told = await lease.abort(chat, "enough", seconds=0.02)
        assert (told.receipt.state, told.receipt.accepted) == ("unknown", False)
        assert told.unconfirmed is not None
        await until(lambda: server.cancelled == ["enough"])
