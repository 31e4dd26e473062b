"""Fairness over real sessions: 128 agents on one, and neighbours that ask for much."""

from collections import Counter

import anyio
import pytest

from nnrp_sched_orchestrator.attained import jain_index
from nnrp_sched_orchestrator.pool import Pool
from nnrp_sched_orchestrator.ticket import Lease, Ticket
from tests.support.server_stage import SECONDS, Stage, quick, scripted, stage, until
from tests.support.serving import script

pytestmark = pytest.mark.anyio

ONE_SESSION = quick(sessions=1, max_in_flight=8)


async def call(pool: Pool, ticket: Ticket, program: str, agent: str, tokens: int) -> None:
    """Make one call of so many tokens."""
    async with ticket as lease:
        await use(pool, lease, program, agent, tokens)


async def use(pool: Pool, lease: Lease, program: str, agent: str, tokens: int) -> None:
    """Make a call in a lease, and say what it has had."""
    outcome = await lease.session.chat(script(text="x ", repeat=tokens)).result()
    assert outcome.status == "completed"
    assert outcome.usage is not None
    pool.charge(program, agent, outcome.usage["completion_tokens"])


class Crowd:
    """Agents that always have something to ask, until all together had so many tokens."""

    def __init__(self, pool: Pool, goal: int) -> None:
        self.pool = pool
        self.had = Counter[str]()
        self._goal = goal

    async def agent(self, program: str, name: str, sizes: list[int]) -> None:
        turn = 0
        while sum(self.had.values()) < self._goal:
            tokens = sizes[turn % len(sizes)]
            await call(self.pool, self.pool.queue(program, name), program, name, tokens)
            self.had[name] += tokens
            turn += 1


@pytest.mark.parametrize("sizes", [[4], [2, 6], [1, 3, 8]], ids=["alike", "two", "three"])
async def test_t33_128_agents_on_one_session_get_the_same_whatever_the_length_of_their_calls(
    sizes: list[int],
) -> None:
    async with stage(1, scripted(slots=8)) as hosts, hosts.pool(ONE_SESSION) as pool:
        crowd = Crowd(pool, 128 * 4 * 6)
        with anyio.fail_after(2 * SECONDS):
            async with anyio.create_task_group() as tasks:
                for number in range(128):
                    # Each begins at another size, so that some always ask for more at once.
                    own = sizes[number % len(sizes) :] + sizes[: number % len(sizes)]
                    tasks.start_soon(crowd.agent, "program", str(number), own)
        assert jain_index(crowd.had.values()) >= 0.95
        assert pool.jain() >= 0.95
        assert len(crowd.had) == 128
        assert (pool.in_flight, pool.waiting) == (0, 0)
        (health,) = pool.endpoints
        assert health.sessions == 1


@pytest.mark.parametrize("apart", [True, False], ids=["another program", "the same program"])
async def test_t33_nobody_starves_beside_a_neighbour_that_keeps_200_calls_queued(
    apart: bool,
) -> None:
    async with stage(1, scripted(slots=8)) as hosts, hosts.pool(ONE_SESSION) as pool:
        heavy_program = "heavy" if apart else "program"
        passed: list[int] = []
        """How many of the neighbour's calls went before each call that was asked for later."""
        heavy_calls = 0

        async def heavy() -> None:
            nonlocal heavy_calls
            while True:
                async with pool.queue(heavy_program, "heavy") as lease:
                    heavy_calls += 1
                    await use(pool, lease, heavy_program, "heavy", 20)

        async def light(number: int) -> None:
            for _ in range(5):
                before = heavy_calls
                async with pool.queue("program", str(number)) as lease:
                    passed.append(heavy_calls - before)
                    await use(pool, lease, "program", str(number), 2)

        with anyio.fail_after(2 * SECONDS):
            async with anyio.create_task_group() as neighbours:
                for _ in range(200):
                    neighbours.start_soon(heavy)
                await until(lambda: pool.waiting >= 192)
                async with anyio.create_task_group() as tasks:
                    for number in range(20):
                        tasks.start_soon(light, number)
                neighbours.cancel_scope.cancel()
        assert len(passed) == 100
        assert max(passed) <= 24  # Three times what runs at once, of more than 192 that wait.
        assert (pool.in_flight, pool.waiting) == (0, 0)


async def test_t38_a_program_of_many_subagents_leaves_a_small_one_its_half() -> None:
    async with stage(1, scripted(slots=4)) as hosts:
        had = await shares(hosts, {"wide": 60, "narrow": 8}, {"wide": 1.0, "narrow": 1.0})
    assert 0.45 <= had["narrow"] / had.total() <= 0.55


async def test_t37_weights_are_shares_of_the_work_done() -> None:
    async with stage(1, scripted(slots=4)) as hosts:
        had = await shares(hosts, {"urgent": 20, "usual": 20}, {"urgent": 3.0, "usual": 1.0})
    assert 0.70 <= had["urgent"] / had.total() <= 0.80


async def shares(hosts: Stage, sizes: dict[str, int], weights: dict[str, float]) -> Counter[str]:
    """What programs of so many agents have had by the time that 2,000 tokens were made."""
    had = Counter[str]()
    async with hosts.pool(quick(sessions=1, max_in_flight=4)) as pool:

        async def agent(program: str, name: str) -> None:
            while had.total() < 2000:
                ticket = pool.queue(program, name, weight=weights[program])
                await call(pool, ticket, program, name, 4)
                had[program] += 4

        with anyio.fail_after(2 * SECONDS):
            async with anyio.create_task_group() as tasks:
                for program, size in sizes.items():
                    for number in range(size):
                        tasks.start_soon(agent, program, str(number))
    return had
