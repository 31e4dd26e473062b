"""Anything at any moment: calls, cancels, forgotten tickets, servers that die; nothing is kept."""

import gc
import random
from collections import Counter

import anyio
import anyio.lowlevel
import pytest

from nnrp_sched.errors import ConnectionLost
from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.errors import EndpointsUnavailable, QueueFull
from nnrp_sched_orchestrator.pool import Pool
from nnrp_sched_orchestrator.ticket import Lease
from tests.support.server_stage import SECONDS, Stage, quick, scripted, stage, until
from tests.support.serving import script

pytestmark = pytest.mark.anyio

AGENTS = 24
CALLS = 12


class Chaos:
    """Agents that do whatever the dice say."""

    def __init__(self, hosts: Stage, pool: Pool, dice: random.Random) -> None:
        self.hosts = hosts
        self.pool = pool
        self.dice = dice
        self.ends = Counter[str]()
        self.agents = 0

    async def turns(self, most: int) -> None:
        """Let others go on for a while."""
        for _ in range(self.dice.randrange(most)):
            await anyio.lowlevel.checkpoint()

    async def agent(self, number: int) -> None:
        self.agents += 1
        for _ in range(CALLS):
            try:
                await self.call(f"program-{number % 3}", str(number))
            except (ConnectionLost, EndpointsUnavailable, QueueFull) as error:
                self.ends[type(error).__name__] += 1
        self.agents -= 1

    async def call(self, program: str, agent: str) -> None:
        dice = self.dice
        key = dice.choice([None, agent, program])
        ticket = self.pool.queue(program, agent, affinity=key, weight=dice.choice([1.0, 2.0]))
        match dice.randrange(6):
            case 0:
                await self.turns(20)
                self.ends["forgotten"] += 1
            case 1:
                await self.turns(20)
                ticket.withdraw()
                self.ends["withdrawn"] += 1
            case 2:
                with anyio.move_on_after(dice.random() * 0.01) as limit:
                    async with ticket as lease:
                        await self.use(lease, program, agent)
                self.ends["in time" if not limit.cancelled_caught else "too late"] += 1
            case _:
                async with ticket as lease:
                    await self.use(lease, program, agent)
                self.ends["done"] += 1

    async def use(self, lease: Lease, program: str, agent: str) -> None:
        held = self.dice.random() < 0.3
        chat = lease.session.chat(script(text="a b", delay_ms=1, hold=held), stream=True)
        if held:
            await anext(chat, None)  # None: its server went down meanwhile.
            told = await lease.abort(chat, seconds=SECONDS)
            assert told.receipt.accepted or told.unconfirmed or told.receipt.state != "running"
        else:
            await chat.result()
            self.pool.charge(program, agent, 2)

    async def servers(self) -> None:
        """Stop and start servers as long as agents are at work."""
        while self.agents:
            host = self.hosts[self.dice.randrange(2)]
            await self.turns(400)
            await (host.kill() if self.dice.random() < 0.5 else host.stop())
            await self.turns(400)
            await host.start()


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_no_place_is_left_taken(seed: int) -> None:
    prepare = scripted(ServerLimits(max_in_flight=5, max_operations=9), slots=3)
    settings = quick(sessions=2, max_in_flight=6, queue_limit=12, unavailable_seconds=0.02)
    async with stage(2, prepare) as hosts, hosts.pool(settings) as pool:
        chaos = Chaos(hosts, pool, random.Random(seed))
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for number in range(AGENTS):
                    tasks.start_soon(chaos.agent, number)
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(chaos.servers)
        assert chaos.ends.total() == AGENTS * CALLS
        assert chaos.ends["done"] > 0
        gc.collect()
        await until(lambda: (pool.in_flight, pool.waiting) == (0, 0))
        await until(lambda: all(each.state == "up" for each in pool.endpoints))
        assert all(each.in_flight == each.waiting == 0 for each in pool.endpoints)
        await until(lambda: all(host.running == 0 for host in hosts.hosts.values()))
        # And every place there is can be had: 6 on each endpoint.
        tickets = [pool.queue("p", "a") for _ in range(12)]
        await until(lambda: pool.in_flight == 12)
        for ticket in tickets:
            ticket.withdraw()
