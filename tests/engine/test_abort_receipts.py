"""What an abort's receipt says in each state, on a real engine, and that nothing stays behind."""

import os
import signal
import time
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.port import AbortReceipt, ChatCall
from nnrp_sched.errors import BackendError
from nnrp_sched_patches.launch import LaunchOptions, Serving, launch
from tests.support.vllm_chats import body
from tests.support.vllm_counters import counters

pytestmark = pytest.mark.anyio


def long(**members: Any) -> dict[str, Any]:
    """A chat that goes on for long."""
    return body("Count.", max_tokens=1500, ignore_eos=True, **members)


class Chats:
    """Chats under way, and how they ended."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.reasons: dict[str, Any] = {}
        self.heard: list[list[AbortReceipt]] = []
        """The receipts of each abort."""

    async def serve(self, name: str, **members: Any) -> None:
        """Have a chat to its end."""
        try:
            answer = await self.serving.engine.complete(ChatCall(name, long(**members)))
        except BackendError as error:
            self.reasons[name] = error.status
        else:
            self.reasons[name] = [choice["finish_reason"] for choice in answer["choices"]]

    async def reach(self, **states: str) -> None:
        """Come back when chats stand where they should."""
        while True:
            shown = {one.id: one.state for one in (await self.serving.engine.queue()).operations}
            if states.items() <= shown.items():
                return
            await checkpoint()

    async def abort(self, *names: str) -> list[AbortReceipt]:
        """Abort as a user would."""
        self.heard.append(await self.serving.engine.abort_operations(names, by="id"))
        return self.heard[-1]


async def _clean(serving: Serving) -> None:
    llm = serving.engine.async_llm
    processor = llm.output_processor
    assert (processor.request_states, processor.parent_requests) == ({}, {})
    assert dict(processor.external_req_ids) == {}
    assert serving.engine.ledger.live == []
    reply = await llm.engine_core.call_utility_async("nnrp_queue", {})
    assert (reply["running"], reply["waiting"], reply["blocked"]) == (0, 0, 0)


async def test_running_and_waiting_requests_are_taken_out_by_the_scheduler(
    two_slots: Serving,
) -> None:
    chats = Chats(two_slots)
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for name in ("r0", "r1"):
                tasks.start_soon(chats.serve, name)
            await chats.reach(r0="running", r1="running")
            tasks.start_soon(chats.serve, "w0")
            await chats.reach(w0="waiting")
            await chats.abort("w0", "r0", "never", "r1")
            await chats.abort("w0", "r0", "never", "r1")
    receipts, again = chats.heard
    assert [(one.request_id, one.state, one.accepted) for one in receipts] == [
        ("w0", "waiting", True),
        ("r0", "running", True),
        ("never", "unknown", False),
        ("r1", "running", True),
    ]
    assert all(one.authoritative for one in receipts)
    assert receipts[0].tokens == 0
    assert all((receipts[index].tokens or 0) > 0 for index in (1, 3))
    assert [one for one in again if one.request_id != "never"] == [
        one for one in receipts if one.request_id != "never"
    ]
    assert chats.reasons == {name: ["abort"] for name in ("r0", "r1", "w0")}
    await _clean(two_slots)


async def test_an_abort_before_vllms_frontend_has_the_request_is_told_as_admitting(
    two_slots: Serving,
) -> None:
    chats = Chats(two_slots)
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chats.serve, "early")
            while two_slots.engine.ledger.find("early") is None:
                await checkpoint()
            await chats.abort("early")
    ((receipt,),) = chats.heard
    assert (receipt.state, receipt.accepted, receipt.authoritative) == ("admitting", True, True)
    assert (receipt.tokens, chats.reasons) == (0, {"early": 499})
    await _clean(two_slots)


async def test_a_finished_request_is_told_from_one_that_never_was(two_slots: Serving) -> None:
    with anyio.fail_after(120):
        await two_slots.engine.complete(ChatCall("over", body(max_tokens=3, ignore_eos=True)))
        over, never = await Chats(two_slots).abort("over", "never")
    assert (over.state, over.accepted, over.authoritative, over.tokens) == (
        "finished",
        False,
        True,
        3,
    )
    assert (never.state, never.accepted, never.tokens) == ("unknown", False, None)


@pytest.mark.parametrize("waiting", [False, True])
async def test_all_choices_of_a_request_go_together_and_leave_no_parent(
    two_slots: Serving, waiting: bool
) -> None:
    chats = Chats(two_slots)
    blockers = ("b0", "b1") if waiting else ()
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for name in blockers:
                tasks.start_soon(chats.serve, name)
            await chats.reach(**dict.fromkeys(blockers, "running"))

            async def three() -> None:
                await chats.serve("three", n=3, temperature=1.0, seed=1)

            tasks.start_soon(three)
            await chats.reach(three="waiting" if waiting else "running")
            await chats.abort("three", *blockers)
    (receipts,) = chats.heard
    assert receipts[0].state == ("waiting" if waiting else "running")
    assert (receipts[0].accepted, receipts[0].authoritative) == (True, True)
    assert chats.reasons["three"] == ["abort"] * 3
    await _clean(two_slots)


async def test_vllms_statistics_know_nothing_of_a_request_aborted_while_it_waits(
    two_slots: Serving,
) -> None:
    chats = Chats(two_slots)
    before: dict[str, float] = {}
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for name in ("r0", "r1"):
                tasks.start_soon(chats.serve, name)
            await chats.reach(r0="running", r1="running")
            # Both have their first token when the counters are read.
            while any(entry.timings.first_token is None for entry in two_slots.engine.ledger.live):
                await checkpoint()
            tasks.start_soon(chats.serve, "w0")
            await chats.reach(w0="waiting")
            before |= counters()
            receipts = await chats.abort("w0", "r0", "r1")
            assert [one.accepted for one in receipts] == [True] * 3
        after = counters()
    assert after == before
    await _clean(two_slots)


async def test_concurrent_aborts_of_one_request_hear_the_same(two_slots: Serving) -> None:
    chats = Chats(two_slots)
    receipts: list[AbortReceipt] = []

    async def abort() -> None:
        receipts.append(await two_slots.engine.abort("one"))

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chats.serve, "one")
            await chats.reach(one="running")
            for _ in range(4):
                tasks.start_soon(abort)
    assert len(set(map(str, receipts))) == 1
    assert (receipts[0].state, receipts[0].accepted) == ("running", True)
    await _clean(two_slots)


async def test_an_abort_that_meets_a_long_step_is_pending_and_then_the_schedulers(
    two_slots: Serving,
) -> None:
    chats = Chats(two_slots)
    (pid,) = [receipt.pid for receipt in two_slots.receipts if receipt.process == "engine"]
    assert pid is not None
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chats.serve, "one")
            await chats.reach(one="running")
            os.kill(pid, signal.SIGSTOP)
            try:
                await chats.abort("one", "elsewhere")
            finally:
                os.kill(pid, signal.SIGCONT)
            await chats.abort("one", "elsewhere")
    asked, told = chats.heard
    assert [(one.state, one.accepted, one.authoritative) for one in asked] == [
        ("pending", False, False),
        ("pending", False, False),
    ]
    assert [(one.state, one.accepted, one.authoritative) for one in told] == [
        ("running", True, True),
        ("unknown", False, True),
    ]
    assert chats.reasons == {"one": ["abort"]}
    await _clean(two_slots)


async def test_a_cancelled_call_has_left_the_engine_when_it_returns(two_slots: Serving) -> None:
    with anyio.fail_after(120):
        stream = two_slots.engine.stream(ChatCall("left", long(stream=True)))
        await anext(stream)
        await stream.aclose()
        await _clean(two_slots)
    entry = two_slots.engine.ledger.find("left")
    assert entry is not None
    assert entry.receipt is not None
    assert (entry.receipt.state, entry.receipt.authoritative) == ("running", True)


async def test_when_the_engine_dies_everything_is_finished_and_says_why() -> None:
    async with launch(LaunchOptions(patch=True)) as serving:
        chats = Chats(serving)
        killed = 0.0
        (pid,) = [receipt.pid for receipt in serving.receipts if receipt.process == "engine"]
        assert pid is not None
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(chats.serve, f"{number}")
                await chats.reach(**{f"{number}": "running" for number in range(3)})
                killed = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                await chats.abort("0")
                assert time.monotonic() - killed < 2
            assert time.monotonic() - killed < 2
            ledger = serving.engine.ledger
            while ledger.engine_failure is None:
                await checkpoint()
        ((receipt,),) = chats.heard
        assert (receipt.accepted, receipt.authoritative) == (False, False)
        assert ledger.live == []
        for number in range(3):
            entry = ledger.find(f"{number}")
            assert entry is not None
            assert entry.state == "finished"
            assert "died" in (entry.reason or "")
        snapshot = await serving.engine.queue()
        assert (snapshot.operations, snapshot.authoritative) == ((), False)
