"""Endpoints that come and go under load: nothing is lost, nothing leaks, everybody is told."""

from collections import Counter
from collections.abc import Awaitable, Callable

import anyio
import pytest

from nnrp_sched.errors import ConnectionLost
from nnrp_sched_orchestrator.errors import EndpointsUnavailable
from nnrp_sched_orchestrator.pool import Pool
from tests.support.server_stage import SECONDS, Host, quick, scripted, stage, until
from tests.support.serving import script

pytestmark = pytest.mark.anyio

CARRIERS = pytest.mark.parametrize("tcp", [False, True], ids=["memory", "tcp"])


class Load:
    """Agents that each make some calls one after the other, and repeat what was lost."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.completed = Counter[str]()
        """By endpoint."""
        self.ends = Counter[str]()
        """By how calls ended."""

    async def agent(self, number: int, calls: int) -> None:
        left = calls
        while left:
            ticket = self.pool.queue("program", str(number), affinity=str(number))
            async with ticket as lease:
                try:
                    chat = lease.session.chat(script(text="a b c d", delay_ms=1), stream=True)
                    outcome = await chat.result()
                except ConnectionLost:
                    self.ends["lost"] += 1
                    continue
                self.ends[outcome.status] += 1
                if outcome.status == "completed":
                    assert outcome.text == "a b c d"
                    self.completed[lease.endpoint] += 1
                    left -= 1


@CARRIERS
@pytest.mark.parametrize("end", [Host.stop, Host.kill], ids=["stopped", "killed"])
async def test_one_of_two_endpoints_ends_and_comes_back_and_every_call_is_made(
    tcp: bool, end: Callable[[Host], Awaitable[None]]
) -> None:
    async with stage(2, scripted(slots=8), tcp=tcp) as hosts:
        settings = quick(max_in_flight=8, queue_limit=200)
        async with hosts.pool(settings) as pool:
            await until(lambda: all(each.state == "up" for each in pool.endpoints))
            load = Load(pool)
            with anyio.fail_after(SECONDS):
                async with anyio.create_task_group() as tasks:
                    for number in range(40):
                        tasks.start_soon(load.agent, number, 6)
                    await until(lambda: load.ends["completed"] >= 20)
                    await end(hosts[0])
                    await until(lambda: pool.endpoints[0].state == "down")
                    before = load.completed[hosts[1].name]
                    await until(lambda: load.completed[hosts[1].name] > before + 10)
                    await hosts[0].start()
                    await until(lambda: pool.endpoints[0].state == "up")
                assert sum(load.completed.values()) == 240
                assert load.ends["completed"] == 240
                async with pool.queue("p", "new") as lease:
                    assert lease.endpoint == pool.endpoints[0].endpoint  # Both are idle.
            assert (pool.in_flight, pool.waiting) == (0, 0)
            assert all(each.in_flight == 0 for each in pool.endpoints)


@CARRIERS
async def test_a_server_killed_and_started_again_ends_every_lease_and_keeps_no_place(
    tcp: bool,
) -> None:
    async with stage(1, scripted(slots=4), tcp=tcp) as hosts:
        settings = quick(max_in_flight=8)
        async with hosts.pool(settings) as pool:
            lost: list[str] = []
            served: list[str] = []

            async def call(number: int) -> None:
                async with pool.queue("p", str(number)) as lease:
                    chat = lease.session.chat(script(text="x", hold=number < 8), stream=True)
                    try:
                        await chat.result()
                    except ConnectionLost as error:
                        lost.append(str(error))
                        assert not lease.alive
                    else:
                        served.append(lease.endpoint)

            with anyio.fail_after(SECONDS):
                async with anyio.create_task_group() as tasks:
                    for number in range(20):
                        tasks.start_soon(call, number)
                    await until(lambda: pool.in_flight == 8 and pool.waiting == 12)
                    await until(lambda: hosts[0].running == 8)
                    await hosts[0].kill()
                    await until(lambda: len(lost) == 8)
                    await until(lambda: pool.in_flight == 0)
                    assert pool.waiting == 12
                    await hosts[0].start()
            assert len(served) == 12
            assert (pool.in_flight, pool.waiting) == (0, 0)
            assert (await hosts[0].engine.queue()).operations == ()


async def test_a_turn_on_a_connection_that_was_just_lost_waits_for_another() -> None:
    async with stage() as hosts, hosts.pool(quick(max_in_flight=2)) as pool:
        ticket = pool.queue("p", "a")
        assert pool.in_flight == 1
        await hosts[0].kill()
        await until(lambda: pool.endpoints[0].state == "down")
        ends: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                async with ticket as lease:
                    ends.append((await lease.session.chat(script(text="x")).result()).status)

            tasks.start_soon(call)
            await until(lambda: pool.waiting == 1)
            assert pool.in_flight == 0
            await hosts[0].start()
        assert ends == ["completed"]
        assert pool.in_flight == 0


async def test_who_waits_for_an_endpoint_that_goes_down_moves_to_another() -> None:
    async with stage(2) as hosts, hosts.pool(quick(sessions=1, max_in_flight=1)) as pool:
        await until(lambda: all(each.state == "up" for each in pool.endpoints))
        found: list[str] = []

        async def again() -> None:
            async with pool.queue("p", "b", affinity="key") as lease:
                found.append(lease.endpoint)

        async with (
            anyio.create_task_group() as tasks,
            pool.queue("p", "a", affinity="key") as lease,
        ):
            tasks.start_soon(again)
            await anyio.wait_all_tasks_blocked()
            await hosts.hosts[lease.endpoint].kill()
            await until(lambda: bool(found))
            assert found != [lease.endpoint]


async def test_after_too_long_without_an_endpoint_who_waits_is_told_and_who_comes_at_once() -> None:
    async with stage() as hosts, hosts.pool(quick(unavailable_seconds=0.02)) as pool:
        await hosts[0].kill()
        await until(lambda: pool.endpoints[0].state == "down")
        for _ in range(2):
            with anyio.fail_after(SECONDS), pytest.raises(EndpointsUnavailable) as raised:
                async with pool.queue("p", "a"):
                    pass
            assert raised.value.reasons == {"host-0": "nobody is at host-0"}
        assert pool.endpoints[0].failures > 0
        await hosts[0].start()
        await until(lambda: pool.endpoints[0].state == "up")
        async with pool.queue("p", "a") as lease:
            assert lease.alive
        assert pool.endpoints[0].failures == 0
        assert (pool.in_flight, pool.waiting) == (0, 0)


async def test_a_short_absence_of_every_endpoint_is_only_a_wait() -> None:
    async with stage() as hosts, hosts.pool(quick(unavailable_seconds=SECONDS)) as pool:
        await hosts[0].kill()
        await until(lambda: pool.endpoints[0].state == "down")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hosts[0].start)
            with anyio.fail_after(SECONDS):
                async with pool.queue("p", "a") as lease:
                    assert (await lease.session.chat(script(text="x")).result()).text == "x"
