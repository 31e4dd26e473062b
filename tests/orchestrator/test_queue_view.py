"""The view of a server's queue: one watch, only while somebody asks, renewed when it is lost."""

import anyio
import anyio.lowlevel
import pytest

from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import BackendError
from nnrp_sched.profile.scheduling import QueuedRequest, QueueSnapshot
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.pool import Pool
from tests.support.server_stage import SECONDS, Host, quick, scripted, stage, until
from tests.support.serving import script

pytestmark = pytest.mark.anyio

WATCHED = quick(watches_per_second=50, watch_seconds=0.05)
LASTING = quick(watches_per_second=50, watch_seconds=SECONDS)


async def hold(pool: Pool, names: list[str], done: anyio.Event) -> None:
    """Make a call that does not end, and tell its name."""
    async with pool.queue("p", "a") as lease:
        chat = lease.session.chat(script(text="x", hold=True), stream=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chat.result)
            await until(lambda: chat.name is not None)
            names.append(chat.name or "")
            await done.wait()
            await lease.abort(chat)


async def seen(pool: Pool, name: str) -> QueuedRequest:
    """Where an operation stands, once that is known."""
    with anyio.fail_after(SECONDS):
        while (row := pool.place("host-0", name)) is None:
            await anyio.lowlevel.checkpoint()
    return row


def watches(host: Host) -> int:
    """Control requests that run at a host."""
    assert host.server is not None
    return host.server.admission.control_operations


async def test_t17_where_an_operation_stands_in_the_engine_is_known_while_it_waits() -> None:
    async with stage(1, scripted(slots=1)) as hosts, hosts.pool(WATCHED) as pool:
        names: list[str] = []
        done = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(hold, pool, names, done)
                await until(lambda number=number: len(names) > number)  # type: ignore[misc]
            rows = [await seen(pool, name) for name in names]
            assert [(row.state, row.position) for row in rows] == [
                ("running", None),
                ("waiting", 0),
                ("waiting", 1),
            ]
            assert watches(hosts[0]) == 1
            done.set()


async def test_nobody_is_watched_before_somebody_asks_and_after_nobody_does() -> None:
    async with stage() as hosts, hosts.pool(WATCHED) as pool:
        async with pool.queue("p", "a") as lease:
            await lease.session.chat(script(text="x")).result()
            await until(lambda: watches(hosts[0]) == 0)
        assert pool.place("host-0", "1.1") is None
        await until(lambda: watches(hosts[0]) == 1)
        await until(lambda: watches(hosts[0]) == 0)
        pool.place("host-0", "1.1")
        await until(lambda: watches(hosts[0]) == 1)


async def test_a_watch_that_is_lost_with_its_connection_is_renewed_on_the_next() -> None:
    async with stage() as hosts, hosts.pool(WATCHED) as pool:
        pool.place("host-0", "1.1")
        await until(lambda: watches(hosts[0]) == 1)
        await hosts[0].kill()
        await until(lambda: pool.endpoints[0].state == "down")
        await hosts[0].start()
        names: list[str] = []
        done = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold, pool, names, done)
            await until(lambda: bool(names))
            assert (await seen(pool, names[0])).state == "running"
            done.set()


class Engine(ScriptedEngine):
    """An engine whose queue cannot be seen for some time."""

    hidden = True
    looks = 0

    async def queue(self) -> QueueSnapshot:
        self.looks += 1
        if self.hidden:
            raise BackendError("nothing to be seen", status=503)
        return await super().queue()


class CrowdedEngine(ScriptedEngine):
    """An engine with more in its queue than anybody looks at."""

    async def queue(self) -> QueueSnapshot:
        rows = tuple(
            QueuedRequest(
                id=f"7.{number}",
                program=None,
                agent=None,
                parent=None,
                source="nnrp",
                state="waiting",
                queue_delay_ms=0.0,
                position=number,
                estimate_ms=None,
                tokens=0,
                priority=0,
            )
            for number in range(9000)
        )
        return QueueSnapshot(rows, 0, len(rows), True, 0.0)


async def test_of_a_crowded_queue_a_bounded_part_is_kept() -> None:
    engine = CrowdedEngine()
    async with stage(1, lambda: (engine, ServerLimits())) as hosts, hosts.pool(LASTING) as pool:
        assert (await seen(pool, "7.8191")).position == 8191
        assert pool.place("host-0", "7.8192") is None


async def test_a_watch_that_the_server_refuses_is_tried_again_until_it_goes_well() -> None:
    engine = Engine()
    async with stage(1, lambda: (engine, ServerLimits())) as hosts, hosts.pool(LASTING) as pool:
        names: list[str] = []
        done = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold, pool, names, done)
            await until(lambda: bool(names))
            assert pool.place("host-0", names[0]) is None
            await until(lambda: engine.looks >= 3)
            assert pool.place("host-0", names[0]) is None
            engine.hidden = False
            assert (await seen(pool, names[0])).state == "running"
            done.set()
