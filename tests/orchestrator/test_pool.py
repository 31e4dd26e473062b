"""The pool: leases in turn, positions, affinity, bounds, and what a server's credit means."""

import gc
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nnrp_sched.errors import ConnectionLost, EndpointError
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.errors import EndpointsUnavailable, QueueFull
from nnrp_sched_orchestrator.pool import Pool
from nnrp_sched_orchestrator.pool_records import PoolSettings
from nnrp_sched_orchestrator.ticket import Lease, Ticket
from tests.support.server_stage import SECONDS, quick, scripted, stage, until
from tests.support.serving import body, script

pytestmark = pytest.mark.anyio

ONE = quick(sessions=1, max_in_flight=1)


async def hold(ticket: Ticket, order: list[str], name: str, go: anyio.Event) -> None:
    """Take a lease, and keep it until told."""
    async with ticket:
        order.append(name)
        await go.wait()


async def take(ticket: Ticket, order: list[str], name: str) -> None:
    """Take a lease for a moment."""
    async with ticket:
        await anyio.lowlevel.checkpoint()
        order.append(name)


def positions(*tickets: Ticket) -> list[int | None]:
    """Where tickets stand."""
    return [ticket.position for ticket in tickets]


async def test_a_lease_is_a_session_in_which_a_call_runs_at_once() -> None:
    async with stage() as hosts, hosts.pool() as pool:
        async with pool.queue("program", "agent") as lease:
            assert pool.in_flight == 1
            outcome = await lease.session.chat(body("hello there")).result()
            assert outcome.text == "You said: hello there"
            assert lease.endpoint == "host-0"
            assert lease.features.control
            assert lease.features.workflow
            assert "example-model" in lease.features.models
            assert "control.credit_backpressure" in lease.features.negotiated
        assert pool.in_flight == 0


async def test_t39_who_waits_knows_how_many_go_before_and_how_long_that_takes() -> None:
    async with stage() as hosts, hosts.pool(ONE) as pool, anyio.create_task_group() as tasks:
        order: list[str] = []
        go = anyio.Event()
        first = pool.queue("p", "a")
        tasks.start_soon(hold, first, order, "first", go)
        waiting = [pool.queue("p", name) for name in "bcd"]
        assert positions(first, *waiting) == [None, 0, 1, 2]
        assert pool.waiting == 3
        for name, ticket in zip("bcd", waiting, strict=True):
            tasks.start_soon(take, ticket, order, name)
        last = pool.queue("p", "e")
        assert positions(last) == [3]
        go.set()
        async with last:
            assert order == ["first", "b", "c", "d"]
            assert positions(last) == [None]


async def test_estimates_follow_the_pace_of_the_queue() -> None:
    async with stage() as hosts, hosts.pool(ONE) as pool:
        tickets = [pool.queue("p", str(number)) for number in range(5)]
        assert [ticket.estimate_ms for ticket in tickets] == [None] * 5
        for ticket in tickets[:3]:
            async with ticket:
                await anyio.sleep(0.002)
        first, second = tickets[3].estimate_ms, tickets[4].estimate_ms
        assert second is not None
        assert first is None or first < second
        for ticket in tickets[3:]:
            ticket.withdraw()
        assert (pool.in_flight, pool.waiting) == (0, 0)


async def test_a_cancelled_wait_gives_nothing_away_and_keeps_nothing() -> None:
    async with stage() as hosts, hosts.pool(ONE) as pool, anyio.create_task_group() as tasks:
        order: list[str] = []
        go = anyio.Event()
        tasks.start_soon(hold, pool.queue("p", "a"), order, "a", go)
        await until(lambda: order == ["a"])
        ticket = pool.queue("p", "b")
        with anyio.CancelScope() as scope:
            tasks.start_soon(take, pool.queue("p", "c"), order, "c")
            scope.cancel()
            async with ticket:
                order.append("b")
        assert ticket.position is None
        assert pool.waiting == 1
        assert order == ["a"]
        go.set()
        await until(lambda: order == ["a", "c"])
        await until(lambda: pool.in_flight == 0)


async def test_a_wait_that_is_cancelled_in_the_moment_of_its_turn_passes_it_on() -> None:
    async with stage() as hosts, hosts.pool(ONE) as pool:
        order: list[str] = []
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as losing:
                    async with pool.queue("p", "a"):
                        losing.start_soon(take, pool.queue("p", "b"), order, "b")
                        await anyio.wait_all_tasks_blocked()
                        tasks.start_soon(take, pool.queue("p", "c"), order, "c")
                        await anyio.wait_all_tasks_blocked()
                    assert pool.in_flight == 1  # b has it, and does not know yet.
                    scope.cancel()
            await until(lambda: order == ["c"])
        assert (pool.in_flight, pool.waiting) == (0, 0)


async def test_a_forgotten_ticket_gives_up_its_place_whether_it_waits_or_has_its_turn() -> None:
    async with stage() as hosts, hosts.pool(ONE) as pool:
        granted = pool.queue("p", "a")
        waits = pool.queue("p", "b")
        assert (pool.in_flight, pool.waiting) == (1, 1)
        del waits
        gc.collect()
        await until(lambda: pool.waiting == 0)
        assert positions(granted) == [None]
        del granted
        gc.collect()
        await until(lambda: pool.in_flight == 0)


async def test_a_ticket_is_good_for_one_block() -> None:
    async with stage() as hosts, hosts.pool() as pool:
        ticket = pool.queue("p", "a")
        async with ticket:
            pass
        with pytest.raises(RuntimeError, match="one block"):
            async with ticket:
                pass
        assert pool.in_flight == 0


async def test_t38_a_full_queue_refuses_and_names_its_limit() -> None:
    settings = quick(sessions=1, max_in_flight=1, queue_limit=3)
    async with stage() as hosts, hosts.pool(settings) as pool:
        tickets = [pool.queue("p", "a") for _ in range(4)]
        with pytest.raises(QueueFull) as raised:
            pool.queue("p", "a")
        assert raised.value.limit == 3
        tickets[3].withdraw()
        tickets[3] = pool.queue("p", "a")
        for ticket in tickets:
            ticket.withdraw()
        assert (pool.in_flight, pool.waiting) == (0, 0)


# --- several endpoints ----------------------------------------------------------------------------


async def leased(pool: Pool, keys: list[str | None], then: Callable[[list[Lease]], None]) -> None:
    """Hold a lease for each key at once."""

    async def hold_next(got: list[Lease], left: list[str | None]) -> None:
        if not left:
            then(got)
            return
        async with pool.queue("p", "a", affinity=left[0]) as lease:
            await hold_next([*got, lease], left[1:])

    with anyio.fail_after(SECONDS):
        await hold_next([], keys)


async def test_calls_go_to_the_endpoint_with_the_fewest_and_a_key_to_where_it_was() -> None:
    async with stage(2) as hosts, hosts.pool() as pool:
        await until(lambda: all(each.state == "up" for each in pool.endpoints))
        homes: dict[str, str] = {}

        def spread(leases: list[Lease]) -> None:
            assert sorted(lease.endpoint for lease in leases) == ["host-0"] * 3 + ["host-1"] * 3
            homes.update(zip("abcdef", (lease.endpoint for lease in leases), strict=True))

        await leased(pool, list("abcdef"), spread)

        def same(leases: list[Lease]) -> None:
            assert [lease.endpoint for lease in leases] == [homes[key] for key in "fedcba"]

        await leased(pool, list("fedcba"), same)


async def test_a_key_waits_for_its_full_endpoint_and_others_pass_it() -> None:
    async with stage(2) as hosts, hosts.pool(quick(sessions=1, max_in_flight=1)) as pool:
        await until(lambda: all(each.state == "up" for each in pool.endpoints))
        async with (
            pool.queue("p", "a", affinity="key") as lease,
            anyio.create_task_group() as tasks,
        ):
            order: list[str] = []
            home = lease.endpoint
            tasks.start_soon(take, pool.queue("p", "b", affinity="key"), order, "b")
            tasks.start_soon(take, pool.queue("p", "c"), order, "c")
            await until(lambda: order == ["c"])
            (waits,) = (each for each in pool.endpoints if each.endpoint == home)
            assert waits.waiting == 1
            tasks.cancel_scope.cancel()
        assert (pool.in_flight, pool.waiting) == (0, 0)


async def test_two_that_wait_with_one_new_key_go_to_one_endpoint() -> None:
    async with stage(2) as hosts, hosts.pool(quick(sessions=1, max_in_flight=1)) as pool:
        await until(lambda: all(each.state == "up" for each in pool.endpoints))
        blockers = [pool.queue("p", "x"), pool.queue("p", "y")]
        assert pool.in_flight == 2
        found: list[str] = []

        async def call() -> None:
            async with pool.queue("p", "a", affinity="key") as lease:
                found.append(lease.endpoint)
                await anyio.sleep(0.005)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            for blocker in blockers:
                blocker.withdraw()
        assert len(found) == 4
        assert len(set(found)) == 1


async def test_keys_are_remembered_up_to_a_limit() -> None:
    settings = quick(affinity_limit=3)
    async with stage(2) as hosts, hosts.pool(settings) as pool:
        for number in range(20):
            async with pool.queue("p", "a", affinity=str(number)):
                pass
        assert pool.known_keys == 3


# --- credit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["session", "server"])
async def test_what_a_pressed_server_does_not_take_waits_in_our_queue(where: str) -> None:
    bound = {"max_in_flight": 2} if where == "session" else {"max_operations": 2}
    prepare = scripted(ServerLimits(**bound))
    async with stage(prepare=prepare) as hosts, hosts.pool(quick(sessions=2)) as pool:
        statuses: list[str] = []
        most = 4 if where == "session" else 2

        async def call(number: int) -> None:
            async with pool.queue("p", str(number)) as lease:
                server = hosts[0].server
                assert server is not None
                outcome = await lease.session.chat(script(text="a b", delay_ms=1)).result()
                statuses.append(outcome.status)
                assert len(server.admission) <= most

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for number in range(30):
                    tasks.start_soon(call, number)
                await until(lambda: len(statuses) > 3)
                assert pool.waiting
        assert (pool.in_flight, pool.waiting) == (0, 0)
        assert len(statuses) == 30
        if where == "session":
            assert set(statuses) == {"completed"}


async def test_while_others_fill_the_server_nothing_of_ours_is_started() -> None:
    prepare = scripted(ServerLimits(max_operations=2))
    async with stage(prepare=prepare) as hosts, hosts.pool() as pool:
        async with hosts[0].connect() as connection, connection.session() as session:
            others = [session.chat(script(text="x", hold=True), stream=True) for _ in range(2)]
            for chat in others:
                await anext(chat)
            await until(lambda: pool.endpoints[0].pressed)
            tickets = [pool.queue("p", "a") for _ in range(3)]
            assert positions(*tickets) == [0, 1, 2]
            assert pool.in_flight == 0
            for chat in others:
                await chat.cancel()
        with anyio.fail_after(SECONDS):
            for ticket in tickets:
                async with ticket as lease:
                    assert (await lease.session.chat(body()).result()).status == "completed"


async def test_a_server_that_lets_nothing_start_is_shown_as_pressed() -> None:
    prepare = scripted(ServerLimits(max_in_flight=1))
    async with stage(prepare=prepare) as hosts, hosts.pool(quick(sessions=1)) as pool:
        async with pool.queue("p", "a") as lease:
            chat = lease.session.chat(script(text="x", hold=True), stream=True)
            await anext(chat)
            await until(lambda: pool.endpoints[0].pressed)
            assert pool.queue("p", "b").position == 0
            await lease.abort(chat)
        await until(lambda: not pool.endpoints[0].pressed)


# --- opening and closing --------------------------------------------------------------------------


async def test_no_endpoint_at_all_is_told_at_once_with_each_ones_reason() -> None:
    async with stage(2) as hosts:
        for host in hosts.hosts.values():
            await host.kill()
        with pytest.raises(EndpointsUnavailable) as raised:
            async with hosts.pool():
                pass
        assert raised.value.reasons == {
            "host-0": "nobody is at host-0",
            "host-1": "nobody is at host-1",
        }


async def test_one_endpoint_of_several_is_enough_to_begin() -> None:
    async with stage(2) as hosts:
        await hosts[0].kill()
        async with hosts.pool() as pool, pool.queue("p", "a") as lease:
            assert lease.endpoint == "host-1"


async def test_a_pool_told_to_wait_for_its_servers_opens_once_one_is_there() -> None:
    async with stage() as hosts:
        await hosts[0].kill()
        async with anyio.create_task_group() as tasks:

            async def later() -> None:
                await until(lambda: hosts[0].connections >= 3)
                await hosts[0].start()

            tasks.start_soon(later)
            with anyio.fail_after(SECONDS):
                async with hosts.pool(quick(start_seconds=SECONDS)) as pool:
                    assert pool.endpoints[0].state == "up"
                    assert pool.endpoints[0].failures == 0


async def test_addresses_are_read_before_anything_else() -> None:
    with pytest.raises(EndpointError, match="no endpoint"):
        async with Pool.open("localhost"):
            pass
    with pytest.raises(ValueError, match="at least one endpoint"):
        async with Pool.open([]):
            pass


@pytest.mark.parametrize("member", ["sessions", "queue_limit", "probe_seconds", "watch_seconds"])
def test_settings_that_bound_nothing_are_refused(member: str) -> None:
    with pytest.raises(ValueError, match=member):
        PoolSettings(**dict[str, Any]({member: 0}))


async def test_who_still_waits_when_the_pool_closes_is_told() -> None:
    async with stage() as hosts:
        failures: list[str] = []

        async def wait(ticket: Ticket) -> None:
            try:
                async with ticket:
                    failures.append("never")
            except ConnectionLost as error:
                failures.append(str(error))

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                opened = hosts.pool(ONE)
                pool = await opened.__aenter__()
                keeps = pool.queue("p", "a")
                tasks.start_soon(wait, pool.queue("p", "b"))
                await anyio.wait_all_tasks_blocked()
                await opened.__aexit__(None, None, None)
                tasks.start_soon(wait, pool.queue("p", "c"))
                keeps.withdraw()
                assert pool.in_flight == 0
        assert failures == ["the pool was closed"] * 2


async def test_a_pool_by_addresses_reaches_a_server_on_tcp() -> None:
    async with stage(tcp=True) as hosts, Pool.open(hosts[0].name) as pool:
        async with pool.queue("p", "a") as lease:
            outcome = await lease.session.chat(body()).result()
        assert outcome.status == "completed"
        assert pool.endpoints[0].endpoint == str(hosts[0].endpoint)
