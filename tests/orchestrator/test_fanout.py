"""Fan-out: who wins, who is cancelled with which proof, what it cost, and that nothing is left."""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from nnrp_sched_orchestrator import fanout
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.entrants import Branch
from nnrp_sched_orchestrator.errors import BudgetExceeded
from nnrp_sched_orchestrator.fanout_report import FanOutReport, NoWinner
from nnrp_sched_orchestrator.first_event_times import FirstEventTimes
from nnrp_sched_orchestrator.records import ModelResult
from nnrp_sched_orchestrator.stream import Stream
from tests.support.programs import ENDLESS, SECONDS, Done, PlayedWork, program, until
from tests.support.serving import script

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]


def says(*words: str, **members: Any) -> dict[str, Any]:
    """A chat body whose answer is these words."""
    return script(text=list(words), **members)


def plays(work: PlayedWork) -> Callable[[Agent], Stream[str, Done]]:
    """Starts played work."""
    return lambda agent: agent.start(work)


class Shop:
    """Played works in the order in which they were started."""

    def __init__(self, **members: Any) -> None:
        self.members = members
        self.works: list[PlayedWork] = []

    def make(self, text: str) -> Callable[[Agent], Stream[str, Done]]:
        """How to start one that says something."""

        def start(agent: Agent) -> Stream[str, Done]:
            self.works.append(PlayedWork(text, **self.members))
            return agent.start(self.works[-1])

        return start

    async def until_made(self, count: int) -> None:
        await until(lambda: len(self.works) == count)

    @property
    def running(self) -> list[PlayedWork]:
        return [work for work in self.works if not work.go.is_set()]


# --- map ------------------------------------------------------------------------------------------


async def test_map_runs_a_stream_for_each_item_and_keeps_their_order() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            done = await fanout.map(agent, lambda word: says(word), ["a", "b", "c"])
    assert [result.text for result in done.result] == ["a", "b", "c"]
    assert done.report.started == 3
    assert len(done.report.winners) == 3
    assert (done.report.losers, done.report.failed) == ((), ())
    assert done.report.tokens_spent == 3


async def test_map_runs_no_more_at_once_than_it_may_and_takes_items_as_needed() -> None:
    shop, taken = Shop(holds=True), 0

    def items() -> Any:
        nonlocal taken
        for number in range(9):
            taken += 1
            yield str(number)

    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:

                async def run() -> None:
                    done = await fanout.map(agent, shop.make, items(), at_once=3)
                    assert [result.text for result in done.result] == list("012345678")

                tasks.start_soon(run)
                for ended in range(9):
                    wanted = min(9, ended + 3)
                    await shop.until_made(wanted)
                    assert len(shop.running) <= 3
                    assert taken == wanted
                    shop.running[-1].go.set()


async def test_map_gives_results_as_they_come_when_asked_to() -> None:
    first, second = PlayedWork("slow", holds=True), PlayedWork("quick")

    async with program() as (_, agent):

        def make(work: PlayedWork) -> Callable[[Agent], Stream[str, Done]]:
            return plays(work)

        async def run() -> None:
            done = await fanout.map(agent, make, [first, second], order="completed")
            assert [result.text for result in done.result] == ["quick", "slow"]

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await until(lambda: second.began.is_set() and not agent.streams[1:])
                first.go.set()


async def test_the_first_failure_of_a_map_is_raised_and_ends_the_others() -> None:
    held = PlayedWork(holds=True)
    broken = PlayedWork(raises=ValueError("broken"))
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            with pytest.raises(ValueError, match="broken"):
                await fanout.map(agent, plays, [held, broken, PlayedWork("never")], at_once=2)
        assert held.stops == ["nobody needs it any more"]
        assert agent.streams == ()


async def test_a_map_may_keep_failures_among_its_results() -> None:
    works = [PlayedWork("a"), PlayedWork("b", raises=ValueError("broken")), PlayedWork("c")]
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            done = await fanout.map(agent, plays, works, failures="keep")
    assert [(r.status, r.text) for r in done.result] == [
        ("completed", "a"),
        ("failed", "b"),
        ("completed", "c"),
    ]
    (failed,) = done.report.failed
    assert isinstance(failed.error, ValueError)
    assert len(done.report.winners) == 2


async def test_a_map_of_nothing_is_nothing() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            done = await fanout.map(agent, plays, [])
    assert done.result == ()
    assert done.report.started == 0


# --- race -----------------------------------------------------------------------------------------


async def test_the_first_of_a_race_wins_and_the_losers_die_with_receipts_of_the_engine() -> None:
    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            won = await fanout.race(agent, [ENDLESS | {"max_tokens": 100}, says("a", "b"), ENDLESS])
            # The losers are gone when the result is there.
            assert agent.streams == ()
            await play.idle()
    assert isinstance(won.result, ModelResult)
    assert won.result.text == "ab"
    report = won.report
    assert report.started == 3
    assert len(report.losers) == 2
    for receipt in report.losers:
        assert receipt.accepted
        assert receipt.authoritative
        assert receipt.stream_id not in report.winners
    spent = sum(receipt.tokens or 0 for receipt in report.losers)
    assert report.tokens_spent == 2 + spent
    bounded = next(each for each in report.losers if each.stream_id.endswith("#1"))
    assert report.tokens_saved_at_most == 100 - (bounded.tokens or 0)
    assert report.without_limit == 1


async def test_a_result_that_does_not_pass_the_check_does_not_win() -> None:
    async def is_long(result: ModelResult) -> bool:
        return len(result.text) > 1

    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            won = await fanout.race(agent, [says("a"), says("b", "c")], check=is_long)
            assert won.result.text == "bc"
            assert won.report.losers == ()
            with pytest.raises(NoWinner, match="race: of 2 streams none") as lost:
                await fanout.race(agent, [says("a"), says("b")], check=is_long)
    assert lost.value.report.tokens_spent == 2
    assert lost.value.report.winners == ()


async def test_a_failure_loses_a_race_and_says_why_when_nobody_wins() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            won = await fanout.race(agent, [says("a", fail_after=0), says("b")])
            assert won.result.text == "b"
            assert len(won.report.failed) == 1
            with pytest.raises(NoWinner, match="Scripted failure with status 500"):
                await fanout.race(agent, [says("a", fail_after=0)] * 2)
            with pytest.raises(NoWinner, match="of 0 streams"):
                await fanout.race(agent, [])


async def test_a_check_that_raises_ends_the_race() -> None:
    def check(_result: ModelResult) -> bool:
        raise LookupError("no such test")

    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            with pytest.raises(LookupError, match="no such test"):
                await fanout.race(agent, [ENDLESS, says("a")], check=check)
            assert agent.streams == ()
            await play.idle()


async def test_what_a_budget_does_not_allow_ends_what_was_started() -> None:
    async with program(budget=Budget(fan_out=2)) as (play, agent):
        with anyio.fail_after(SECONDS):
            with pytest.raises(BudgetExceeded, match="fan_out"):
                await fanout.race(agent, [ENDLESS] * 3)
            assert agent.streams == ()
            await play.idle()


# --- hedge ----------------------------------------------------------------------------------------


async def test_a_quick_first_copy_is_not_hedged() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            done = await fanout.hedge(agent, says("a"), after=10)
    assert (done.result.text, done.report.started) == ("a", 1)


async def test_a_second_copy_is_sent_after_the_delay_and_the_one_that_answers_goes_on() -> None:
    works = [PlayedWork(holds=True), PlayedWork("answer", holds=True)]
    started: list[PlayedWork] = []

    def copy(agent: Agent) -> Stream[str, Done]:
        started.append(works[len(started)])
        return agent.start(started[-1])

    async with program() as (_, agent):

        async def run() -> None:
            done = await fanout.hedge(agent, Branch(copy, max_tokens=50), after=0.02)
            assert done.result.text == "answer"
            assert done.report.started == 2
            (loser,) = done.report.losers
            assert loser.accepted
            assert loser.reason.endswith("answers")
            assert done.report.tokens_saved_at_most == 50

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                # The first copy is gone while the second one still runs.
                await until(lambda: bool(works[0].stops))
                assert works[1].began.is_set()
                assert not works[1].stops
                works[1].go.set()


async def test_copies_follow_at_the_delay_up_to_their_number() -> None:
    shop = Shop(holds=True)

    def silent(agent: Agent) -> Stream[str, Done]:
        shop.works.append(PlayedWork(holds=True))
        return agent.start(shop.works[-1])

    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            with anyio.move_on_after(0.2):
                await fanout.hedge(agent, silent, after=0.01, copies=3)
        assert agent.streams == ()
    assert len(shop.works) == 3
    assert all(len(work.stops) == 1 for work in shop.works)


async def test_a_copy_that_fails_before_it_answers_is_one_less() -> None:
    first = PlayedWork(raises=ValueError("broken"), holds=True)
    works = iter([first, PlayedWork("answer", holds=True)])

    def copy(agent: Agent) -> Stream[str, Done]:
        work = next(works)
        if work is not first:
            first.go.set()
            work.go.set()
        return agent.start(work)

    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            done = await fanout.hedge(agent, copy, after=0.01)
            assert done.result.text == "answer"
            with pytest.raises(NoWinner, match=r"hedge: of 1 streams none .*broken"):
                await fanout.hedge(agent, plays(PlayedWork(raises=ValueError("broken"))), after=10)


async def test_the_delay_is_the_quantile_of_what_was_observed_and_grows_with_it() -> None:
    times = FirstEventTimes(enough=2)
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            for _ in range(2):
                done = await fanout.hedge(agent, says("a"), after=times, otherwise=10)
                assert done.report.started == 1
            assert len(times) == 2
            shop = Shop(holds=True)

            def silent(agent: Agent) -> Stream[str, Done]:
                shop.works.append(PlayedWork(holds=True))
                return agent.start(shop.works[-1])

            with anyio.move_on_after(10) as patience:

                async def enough() -> None:
                    await until(lambda: len(shop.works) == 2)
                    patience.cancel()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(enough)
                    await fanout.hedge(agent, silent, after=times, otherwise=100)
        assert len(shop.works) == 2


# --- best_of --------------------------------------------------------------------------------------


async def test_the_best_score_wins_and_of_equals_the_earlier() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            best = await fanout.best_of(
                agent,
                [says("a"), says("b", "c"), says("d", "e"), says("f", fail_after=0)],
                score=lambda result: float(len(result.text)),
            )
    assert (best.result.result.text, best.result.score) == ("bc", 2.0)
    assert best.report.losers == ()
    assert len(best.report.failed) == 1


async def test_a_score_that_is_enough_ends_the_others() -> None:
    async def score(result: ModelResult) -> float | None:
        return 1.0 if result.text == "good" else None

    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            best = await fanout.best_of(
                agent, [ENDLESS, says("bad"), says("good"), ENDLESS], score=score, enough=1.0
            )
            await play.idle()
            assert best.result.result.text == "good"
            assert len(best.report.losers) == 2
            assert all(receipt.accepted for receipt in best.report.losers)


async def test_what_waits_for_its_turn_is_never_started_once_it_is_enough() -> None:
    shop = Shop()
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            best = await fanout.best_of(
                agent,
                [shop.make(str(number)) for number in range(50)],
                score=lambda result: float(result.text),
                enough=3,
                at_once=1,
            )
    assert best.result.score == 3
    assert len(shop.works) <= 5


async def test_no_score_is_no_winner() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            with pytest.raises(NoWinner, match="best_of: of 2 streams"):
                await fanout.best_of(agent, [says("a")] * 2, score=lambda _: None)
            with pytest.raises(NoWinner, match="best_of: of 2 streams"):
                await fanout.best_of(agent, [says("a")] * 2, score=lambda _: math.nan)


# --- gather ---------------------------------------------------------------------------------------


async def test_t22_what_is_there_at_the_deadline_is_the_result() -> None:
    works = [PlayedWork("a"), PlayedWork("part", holds=True), PlayedWork("c")]
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            done = await fanout.gather(agent, [plays(work) for work in works], seconds=0.1)
    assert [(r.status, r.text) for r in done.result] == [
        ("completed", "a"),
        ("cancelled", "part"),
        ("completed", "c"),
    ]
    (loser,) = done.report.losers
    assert loser.accepted
    assert len(done.report.winners) == 2


async def test_who_has_ended_is_not_waited_for() -> None:
    async with program() as (_, agent):
        with anyio.fail_after(SECONDS):
            done = await fanout.gather(agent, [says("a"), says("b", fail_after=0)], seconds=1e6)
    assert [result.status for result in done.result] == ["completed", "failed"]
    assert len(done.report.failed) == 1


async def test_the_parts_of_model_calls_are_kept_and_the_engine_is_idle() -> None:
    async with program() as (play, agent):
        with anyio.fail_after(SECONDS):
            done = await fanout.gather(agent, [ENDLESS, says("a")], seconds=0.3)
            await play.idle()
    assert [(result.status, result.text) for result in done.result] == [
        ("cancelled", "x"),
        ("completed", "a"),
    ]
    (loser,) = done.report.losers
    assert (loser.state, loser.accepted, loser.tokens) == ("running", True, 1)


# --- for all of them ------------------------------------------------------------------------------

FANOUTS: dict[str, Callable[[Agent, list[Any]], Any]] = {
    "map": lambda agent, branches: fanout.map(agent, lambda each: each, branches),
    "race": lambda agent, branches: fanout.race(agent, branches),
    "hedge": lambda agent, branches: fanout.hedge(agent, branches[0], after=0.001),
    "best_of": lambda agent, branches: fanout.best_of(agent, branches, score=lambda _: 1.0),
    "gather": lambda agent, branches: fanout.gather(agent, branches, seconds=1e6),
}


@pytest.mark.parametrize("name", FANOUTS)
async def test_a_fanout_that_is_cancelled_leaves_nothing(name: str) -> None:
    async with program() as (play, agent):
        # Says nothing before it is aborted, so that a hedge has two copies.
        silent = script(hold=True)
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(FANOUTS[name], agent, [silent, silent])
                await until(lambda: play.operations == 2)
                tasks.cancel_scope.cancel()
            assert agent.streams == ()
            await play.idle()
        assert len(agent.receipts) == 2
        assert all(receipt.accepted for receipt in agent.receipts)


@pytest.mark.parametrize("name", FANOUTS)
async def test_a_program_that_is_cancelled_ends_its_fanouts(name: str) -> None:
    async with program() as (play, agent):
        silent = script(hold=True)
        outcomes: list[Any] = []

        async def run() -> None:
            try:
                outcomes.append(await FANOUTS[name](agent, [silent, silent]))
            except NoWinner as error:
                outcomes.append(error)

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await until(lambda: play.operations == 2)
                await agent.cancel("enough")
            await play.idle()
        (outcome,) = outcomes
        report: FanOutReport = outcome.report
        assert report.winners == ()
        assert report.started == 2


NOTHING_RUNS: list[Callable[[Agent], Awaitable[Any]]] = [
    lambda agent: fanout.map(agent, plays, [PlayedWork()], at_once=0),
    lambda agent: fanout.hedge(agent, "x", after=1, copies=0),
    lambda agent: fanout.best_of(agent, ["x"], score=lambda _: 1.0, at_once=-1),
]


@pytest.mark.parametrize("call", NOTHING_RUNS)
async def test_what_lets_nothing_run_is_refused(call: Callable[[Agent], Awaitable[Any]]) -> None:
    async with program() as (_, agent):
        with pytest.raises(ValueError, match="lets nothing run"):
            await call(agent)
