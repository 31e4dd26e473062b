"""The feed of the ledger over a stand-in: events, lost polls, and the engine's death."""

import asyncio
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched_patches.control import Control
from nnrp_sched_patches.ledger_feed import follow, followed
from tests.support.vllm_frontend import Frontend, hooked

pytestmark = pytest.mark.anyio


class Polls:
    """Answers of `nnrp_poll`, one after the other; then none until the engine dies."""

    def __init__(self, llm: Frontend, *answers: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answers = list(answers)
        llm.replies["nnrp_poll"] = self.answer

    def answer(self, payload: dict[str, Any]) -> Any:
        self.asked.append(payload)
        if not self._answers:
            return asyncio.get_running_loop().create_future()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _batch(seq: int, *events: tuple[str, str, int], dropped: int = 0) -> dict[str, Any]:
    listed = [[seq, kind, name, at * 1_000_000, None] for kind, name, at in events]
    return {"seq": seq, "events": listed, "dropped": dropped}


async def _until_asked(polls: Polls, times: int) -> None:
    while len(polls.asked) < times:
        await checkpoint()


async def test_transitions_reach_the_ledger_as_they_come() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (one,) = await llm.add_request("one")
        polls = Polls(
            llm,
            _batch(1, ("queued", one, 5), ("queued", "of-another-server", 5)),
            _batch(4, ("scheduled", one, 9)),
        )
        async with followed(llm, llm.ledger):
            await _until_asked(polls, 3)
        (entry,) = llm.ledger.live
    assert [asked["since"] for asked in polls.asked] == [0, 1, 4]
    assert (entry.state, entry.timings.queued, entry.timings.scheduled) == ("running", 5, 9)


@pytest.mark.parametrize(
    "loss",
    [RuntimeError("refused"), {"nonsense": 1}, {"seq": 9, "events": [], "dropped": 4}],
    ids=["refused", "nonsense", "dropped"],
)
async def test_what_a_lost_poll_would_have_told_is_asked_for(loss: Any) -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (one,) = await llm.add_request("one")
        standing = {"state": "preempted", "queued_ns": 5_000_000, "scheduled_ns": 9_000_000}
        llm.replies["nnrp_state"] = lambda payload: {"requests": {one: standing}}
        polls = Polls(llm, loss)
        async with anyio.create_task_group() as tasks:

            async def feed() -> None:
                await follow(llm, llm.ledger, pause_s=0)

            tasks.start_soon(feed)
            await _until_asked(polls, 2)
            tasks.cancel_scope.cancel()
    (entry,) = llm.ledger.live
    assert (entry.state, entry.timings.queued, entry.timings.scheduled) == ("preempted", 5, 9)


async def test_a_poll_without_an_answer_is_given_up_and_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nnrp_sched_patches.ledger_feed._GRACE_S", 0.01)
    llm, _ = hooked()
    polls = Polls(llm)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def feed() -> None:
                await follow(llm, llm.ledger, poll_s=0.01, pause_s=0)

            tasks.start_soon(feed)
            await _until_asked(polls, 3)
            tasks.cancel_scope.cancel()
    assert {asked["since"] for asked in polls.asked} == {0}


async def test_the_engines_death_ends_the_feed_and_every_request() -> None:
    llm, _ = hooked()
    polls = Polls(llm)
    with anyio.fail_after(5):
        await llm.add_request("one")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, llm, llm.ledger)
            await _until_asked(polls, 1)
            llm.die()
        snapshot = await Control(llm, llm.ledger).queue()
    entry = llm.ledger.find("one")
    assert entry is not None
    assert entry.state == "finished"
    assert "died" in (entry.reason or "")
    assert (snapshot.operations, snapshot.authoritative) == ((), False)


async def test_a_snapshot_says_when_the_scheduler_was_not_to_be_heard() -> None:
    llm, _ = hooked()
    control = Control(llm, llm.ledger)
    with anyio.fail_after(5):
        (one,) = await llm.add_request("one")
        silent = await control.queue()
        standing = {"state": "waiting", "position": 0, "priority": 2, "tokens": 0}
        llm.replies["nnrp_state"] = lambda payload: {"requests": {one: standing}}
        heard = await control.queue()
    assert [snapshot.authoritative for snapshot in (silent, heard)] == [False, True]
    assert [snapshot.operations[0].position for snapshot in (silent, heard)] == [None, 0]
