"""vLLM's own aborts over a stand-in for its frontend: each ends in the scheduler's receipt."""

import asyncio
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.records import AbortReceipt
from nnrp_sched_patches import abort
from nnrp_sched_patches.abort import Aborter
from tests.support.vllm_frontend import FinishReason, Frontend, hooked, output

pytestmark = pytest.mark.anyio


class Scheduler:
    """The engine's side of `nnrp_abort`: it answers when it is let."""

    def __init__(self, llm: Frontend, **states: tuple[str, int]) -> None:
        self.states: dict[str, tuple[str, int]] = {**states}
        self.answering = anyio.Event()
        self.answering.set()
        llm.replies["nnrp_abort"] = lambda payload: asyncio.ensure_future(self._abort(payload))

    async def _abort(self, payload: dict[str, Any]) -> dict[str, Any]:
        await self.answering.wait()
        told: dict[str, Any] = {}
        for one in payload["ids"]:
            state, tokens = self.states.pop(one, ("unknown", None))
            told[one] = {"state": state, "accepted": state != "unknown", "tokens": tokens}
        return {"requests": told, "mono_ns": 1}


def _entry(llm: Frontend, name: str) -> Any:
    entry = llm.ledger.find(name)
    assert entry is not None
    return entry


def _short(receipt: AbortReceipt | None) -> tuple[Any, ...]:
    assert receipt is not None
    return (receipt.state, receipt.accepted, receipt.authoritative, receipt.tokens)


async def test_vllms_abort_asks_the_engine_first_and_then_runs() -> None:
    llm, switches = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        Scheduler(llm, **{internal: ("running", 7)})
        await llm.abort(internal, internal=True)
    entry = _entry(llm, "one")
    assert _short(entry.receipt) == ("running", True, True, 7)
    assert (entry.abort_cause, entry.reason, entry.tokens) == ("requested", "abort", 7)
    assert llm.calls == [("nnrp_abort", {"ids": [internal], "client": 0})]
    # Once only: vLLM's own finds nothing left.
    assert (llm.output_processor.ends, llm.public_aborts) == ([internal], [(internal,)])
    assert [switch.failures for switch in switches] == [0] * 5


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (asyncio.CancelledError, "client_gone"),
        (GeneratorExit, "client_gone"),
        (ValueError, "failed"),
    ],
)
async def test_why_vllm_aborts_is_what_its_generator_is_in_the_middle_of(
    error: type[BaseException], cause: str
) -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        Scheduler(llm, **{internal: ("waiting", 0)})
        try:
            raise error
        except error:
            await llm.abort(internal, internal=True)
    assert _entry(llm, "one").abort_cause == cause


async def test_all_choices_go_by_their_parents_id_and_a_single_one_is_vllms_affair() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        ids = await llm.add_request("three", n=3)
        Scheduler(llm, **dict.fromkeys(ids, ("running", 2)))
        await llm.abort(ids[0], internal=True)
        entry = _entry(llm, "three")
        assert (entry.receipt, llm.calls) == (None, [])
        await llm.abort(ids[0].partition("_")[2], internal=True)
    assert _short(entry.receipt) == ("running", True, True, 4)
    assert (llm.output_processor.parent_requests, llm.ledger.live) == ({}, [])


async def test_an_external_id_means_all_that_share_it() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (first,) = await llm.add_request("twin")
        (second,) = await llm.add_request("twin")
        Scheduler(llm, **dict.fromkeys((first, second), ("waiting", 0)))
        await llm.abort(["twin", "never"])
        await llm.abort("twin")
    assert [_short(_entry(llm, name).receipt)[:2] for name in ("twin", "twin#2")] == [
        ("waiting", True),
        ("waiting", True),
    ]
    assert (llm.ledger.live, len(llm.calls)) == ([], 1)


async def test_ids_that_nobody_knows_and_iterators_pass_unchanged() -> None:
    llm, switches = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        await llm.abort(["never"], internal=True)
        await llm.abort("never")
        await llm.abort(iter([internal]), internal=True)
    assert llm.public_aborts == [("never",), ("never",), (internal,)]
    assert (llm.calls, llm.output_processor.ends) == ([], [internal])
    assert [switch.failures for switch in switches] == [0] * 5


async def test_a_caller_that_is_cancelled_again_leaves_the_abort_to_go_through() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        scheduler = Scheduler(llm, **{internal: ("running", 1)})
        scheduler.answering = anyio.Event()
        leaving = asyncio.ensure_future(llm.abort(internal, internal=True))
        while not llm.calls:
            await checkpoint()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert llm.public_aborts == []
        scheduler.answering.set()
        while llm.ledger.live:
            await checkpoint()
    assert _short(_entry(llm, "one").receipt) == ("running", True, True, 1)


async def test_vllms_abort_beside_a_users_hears_the_same_and_the_first_cause_counts() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        Scheduler(llm, **{internal: ("running", 1)})
        entry = _entry(llm, "one")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Aborter(llm, llm.ledger).abort, [entry])
            tasks.start_soon(llm.abort, internal, True)
    assert (len(llm.calls), entry.abort_cause) == (1, "requested")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("inside", [True, False])
async def test_a_cancel_during_admission_asks_at_once_and_says_how_far_it_came(
    known: bool, inside: bool
) -> None:
    llm, _ = hooked()
    llm.sending, llm.takes_back = anyio.Event(), inside
    scheduler = Scheduler(llm)
    with anyio.fail_after(5):
        task = asyncio.ensure_future(llm.add_request("one", 2))
        while not llm.output_processor.request_states:
            await checkpoint()
        if known:
            ids = list(llm.output_processor.request_states)
            scheduler.states |= dict.fromkeys(ids, ("waiting", 0))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    entry = _entry(llm, "one")
    state = "waiting" if known else "admitting"
    assert _short(entry.receipt) == (state, True, True, 0)
    assert (entry.abort_cause, entry.reason, llm.ledger.live) == ("client_gone", "abort", [])
    processor = llm.output_processor
    assert (processor.request_states, processor.parent_requests) == ({}, {})


async def test_a_caller_that_left_before_anything_was_registered_is_told_as_admitting() -> None:
    llm, _ = hooked()
    llm.preparing = anyio.Event()
    with anyio.fail_after(5):
        task = asyncio.ensure_future(llm.add_request("one"))
        while not llm.ledger.live:
            await checkpoint()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    entry = _entry(llm, "one")
    assert _short(entry.receipt) == ("admitting", True, True, 0)
    assert (entry.abort_cause, entry.reason, llm.ledger.live) == ("client_gone", "abort", [])


async def test_a_dead_engine_ends_vllms_abort_without_an_error() -> None:
    llm, switches = hooked()

    def die(_: dict[str, Any]) -> Any:
        llm.die()
        return asyncio.get_running_loop().create_future()

    llm.replies["nnrp_abort"] = die
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        await llm.abort(internal, internal=True)
    assert _short(_entry(llm, "one").receipt) == ("finished", False, False, 0)
    assert [switch.failures for switch in switches] == [0] * 5
    assert llm.output_processor.request_states == {}


async def test_an_abort_that_fails_unexpectedly_still_stops_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm, _ = hooked()

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(abort, "engine_abort", broken)
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        await llm.abort(internal, internal=True)
    assert _short(_entry(llm, "one").receipt) == ("waiting", True, False, 0)
    assert llm.public_aborts == [(internal,), (internal,)]
    assert (llm.ledger.live, llm.output_processor.ends) == ([], [internal])


async def test_a_request_that_ended_by_itself_keeps_its_end() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        end = output(internal, 1, finish=FinishReason.STOP)
        llm.output_processor.process_outputs([end], 1.0)
        await llm.abort(internal, internal=True)
    entry = _entry(llm, "one")
    assert (entry.reason, _short(entry.receipt)) == ("stop", ("finished", False, True, 1))
