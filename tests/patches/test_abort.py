"""Aborts over a stand-in for vLLM's frontend and engine: receipts in every state, once each."""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.records import AbortReceipt, Caller
from nnrp_sched.server import ServerLimits
from nnrp_sched_patches.abort import PENDING_AFTER_S, Aborter
from nnrp_sched_patches.control import Control
from nnrp_sched_patches.engine_names import Told, external_id, meant
from nnrp_sched_patches.origin import Origin, origin
from tests.support.vllm_frontend import FinishReason, Frontend, hooked, output

pytestmark = pytest.mark.anyio


class Scheduler:
    """The engine's side: what `nnrp_abort` finds, by internal id."""

    def __init__(self, llm: Frontend) -> None:
        self.states: dict[str, tuple[str, int]] = {}
        self.elsewhere: dict[str, Told] = {}
        """Another frontend's requests, and what it told of them."""
        llm.replies["nnrp_abort"] = self.abort

    def abort(self, payload: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {}
        names = meant(
            self.elsewhere, self.elsewhere, payload.get("names", ()), payload.get("by", "id")
        )
        for one in (*payload["ids"], *names):
            state, tokens = self.states.pop(one, ("unknown", None))
            told[one] = {"state": state, "accepted": state != "unknown", "tokens": tokens}
            if one in names:
                told[one]["name"] = names[one]
                del self.elsewhere[one]
        return {"requests": told, "mono_ns": 1}


async def _abort(llm: Frontend, *names: str, **times: float) -> list[AbortReceipt]:
    entries = [llm.ledger.find(name) for name in names]
    return await Aborter(llm, llm.ledger, **times).abort([e for e in entries if e])


def _short(receipt: AbortReceipt) -> tuple[Any, ...]:
    return (receipt.state, receipt.accepted, receipt.authoritative, receipt.tokens)


@pytest.mark.parametrize("state", ["waiting", "blocked", "running", "preempted"])
async def test_the_scheduler_says_where_a_request_stood_and_the_frontend_ends_it(
    state: str,
) -> None:
    llm, _ = hooked()
    scheduler = Scheduler(llm)
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        scheduler.states[internal] = (state, 7)
        (receipt,) = await _abort(llm, "one")
    assert _short(receipt) == (state, True, True, 7)
    assert (receipt.request_id, llm.output_processor.ends) == ("one", [internal])
    assert llm.calls == [("nnrp_abort", {"ids": [internal], "client": 0})]
    assert (llm.public_aborts, llm.ledger.live) == ([], [])


async def test_all_choices_go_in_one_call_and_their_parent_with_them() -> None:
    llm, _ = hooked()
    scheduler = Scheduler(llm)
    with anyio.fail_after(5):
        ids = await llm.add_request("three", n=3)
        llm.output_processor.process_outputs([output(ids[0], 1, 2, finish=FinishReason.STOP)], 1.0)
        # vLLM takes a choice that ended off its parent when its output is made.
        llm.output_processor.parent_requests[ids[0][2:]].child_requests.discard(ids[0])
        scheduler.states |= {ids[1]: ("waiting", 0), ids[2]: ("running", 3)}
        (receipt,) = await _abort(llm, "three")
    assert _short(receipt) == ("running", True, True, 5)
    assert len(llm.calls) == 1
    assert llm.output_processor.parent_requests == {}


async def test_a_list_is_one_call_with_a_receipt_for_each() -> None:
    llm, _ = hooked()
    scheduler = Scheduler(llm)
    with anyio.fail_after(5):
        (first,) = await llm.add_request("first")
        (second,) = await llm.add_request("second")
        await llm.add_request("ending")
        scheduler.states |= {first: ("running", 2), second: ("waiting", 0)}
        receipts = await _abort(llm, "second", "ending", "first")
    assert [_short(one)[:3] for one in receipts] == [
        ("waiting", True, True),
        # The engine has no more of it: its last output is on its way here.
        ("finished", False, True),
        ("running", True, True),
    ]
    assert len(llm.calls) == 1
    assert [entry.id for entry in llm.ledger.live] == ["ending"]


async def test_a_finished_request_is_told_from_the_frontends_own_table() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        end = output(internal, 1, 2, finish=FinishReason.STOP)
        llm.output_processor.process_outputs([end], 1.0)
        (receipt,) = await _abort(llm, "one")
    assert _short(receipt) == ("finished", False, True, 2)
    assert llm.calls == []


async def test_who_comes_second_hears_the_first_result() -> None:
    llm, _ = hooked()
    scheduler = Scheduler(llm)
    entries: list[Any] = []
    receipts: list[AbortReceipt] = []
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        scheduler.states[internal] = ("running", 3)
        aborter = Aborter(llm, llm.ledger)
        entries.append(llm.ledger.find("one"))

        async def abort() -> None:
            receipts.extend(await aborter.abort(entries))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(abort)
        await abort()
    assert len(set(map(str, receipts))) == 1
    assert len(llm.calls) == 1


async def test_an_abort_goes_through_when_its_caller_is_cancelled() -> None:
    llm, _ = hooked()
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    llm.replies["nnrp_abort"] = lambda payload: answer
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_abort, llm, "one")
            while not llm.calls:
                await checkpoint()
            tasks.cancel_scope.cancel()
        told = {internal: {"state": "running", "accepted": True, "tokens": 1}}
        answer.set_result({"requests": told})
        while llm.ledger.live:
            await checkpoint()
    assert llm.output_processor.request_states == {}


async def test_an_abort_waits_for_an_admission_under_way() -> None:
    llm, _ = hooked()
    scheduler = Scheduler(llm)
    llm.sending = anyio.Event()
    receipts: list[AbortReceipt] = []

    async def abort() -> None:
        receipts.extend(await _abort(llm, "one"))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(llm.add_request, "one")
            while not llm.output_processor.request_states:
                await checkpoint()
            (internal,) = llm.output_processor.request_states
            scheduler.states[internal] = ("waiting", 0)
            tasks.start_soon(abort)
            for _ in range(5):
                await checkpoint()
            assert llm.calls == []
            llm.sending.set()
    assert _short(receipts[0]) == ("waiting", True, True, 0)


def _stopped_at_the_door(llm: Frontend, caller: Caller, handle: str) -> list[str]:
    """Open a call that ends when its door is shut; a note each time that somebody shuts it."""
    entry = llm.ledger.open(caller, "nnrp", external_id=f"x-{handle}", handle=handle, at=1)
    shut: list[str] = []

    def cancel() -> None:
        shut.append(handle)
        asyncio.get_running_loop().call_soon(llm.ledger.close, entry, "ended by the caller", 2)

    entry.cancel = cancel
    return shut


async def test_before_the_frontend_has_a_call_its_own_door_stops_it() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        shut = _stopped_at_the_door(llm, Caller(), "one")
        await _abort(llm, "one")
        (receipt,) = await _abort(llm, "one")
    assert _short(receipt) == ("admitting", True, True, 0)
    assert shut == ["one"]


async def test_a_call_that_does_not_heed_its_door_is_not_said_to_be_gone_for_sure() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        entry = llm.ledger.open(Caller(), "nnrp", external_id="x", handle="one", at=1)
        entry.cancel = lambda: None
        (receipt,) = await _abort(llm, "one", admission_s=0.01)
    assert _short(receipt) == ("admitting", True, False, 0)


async def test_a_call_registered_in_the_moment_of_its_abort_has_the_schedulers_word() -> None:
    llm, _ = hooked()
    scheduler = Scheduler(llm)
    llm.preparing, llm.sending = preparing, _ = anyio.Event(), anyio.Event()
    scope = anyio.CancelScope()
    receipts: list[AbortReceipt] = []
    with anyio.fail_after(5):
        entry = llm.ledger.open(Caller(), "nnrp", external_id="x", handle="one", at=1)

        def cancel() -> None:
            # vLLM goes on in this very moment: the cancellation meets it at its next wait.
            preparing.set()
            scope.cancel()

        async def serve() -> None:
            with scope, origin(Origin(Caller(), "nnrp", entry=entry)):
                await llm.add_request("one")
            llm.ledger.close(entry, "ended by the caller", 2)

        entry.cancel = cancel
        scheduler.states["one-00000000"] = ("waiting", 0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            while not entry.admissions:
                await checkpoint()
            receipts += await _abort(llm, "one")
    assert [_short(receipt) for receipt in receipts] == [("waiting", True, True, 0)]
    assert scheduler.states == {}
    assert (llm.ledger.live, llm.output_processor.request_states) == ([], {})


@pytest.mark.parametrize("silent", [True, False])
async def test_without_the_engines_word_the_public_abort_stops_it_and_says_so(
    silent: bool,
) -> None:
    llm, _ = hooked()

    def refuse(payload: dict[str, Any]) -> Any:
        if silent:
            return asyncio.get_running_loop().create_future()
        raise RuntimeError("no such method")

    llm.replies["nnrp_abort"] = refuse
    with anyio.fail_after(5):
        ids = await llm.add_request("two", n=2)
        (receipt,) = await _abort(llm, "two", silence_s=0.01)
    assert _short(receipt) == ("waiting", True, False, 0)
    assert llm.public_aborts == [(ids[0][2:],)]
    assert llm.output_processor.parent_requests == {}


def _long_step(llm: Frontend, internal: str) -> Callable[[], None]:
    """A request runs, and the engine answers aborts only once what is returned is called."""
    scheduler = Scheduler(llm)
    scheduler.states[internal] = ("running", 7)
    answer = asyncio.get_running_loop().create_future()
    llm.replies["nnrp_abort"] = lambda payload: answer
    return lambda: answer.set_result(scheduler.abort({"ids": [internal]}))


def test_a_caller_hears_of_a_long_step_before_the_server_gives_up_on_the_engine() -> None:
    limits = ServerLimits()
    assert limits.abort_seconds > PENDING_AFTER_S
    # Ours first, then those of other API servers.
    assert limits.control_seconds > 2 * PENDING_AFTER_S


async def test_an_abort_that_meets_a_long_step_is_pending_until_the_engine_has_answered() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        end_step = _long_step(llm, internal)
        for _ in range(2):
            (receipt,) = await _abort(llm, "one", pending_after_s=0.01)
            assert _short(receipt) == ("pending", False, False, 0)
        assert [entry.id for entry in llm.ledger.live] == ["one"]
        end_step()
        (receipt,) = await _abort(llm, "one")
    assert _short(receipt) == ("running", True, True, 7)
    assert (len(llm.calls), llm.public_aborts, llm.ledger.live) == (1, [], [])


async def test_what_the_frontend_ends_meanwhile_still_gets_the_engines_word() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        end_step = _long_step(llm, internal)
        await _abort(llm, "one", pending_after_s=0.01)
        # As vLLM does for a client that has left.
        llm.output_processor.abort_requests([internal], internal=True)
        assert llm.ledger.live == []
        end_step()
        (receipt,) = await _abort(llm, "one")
    assert _short(receipt) == ("running", True, True, 7)


async def test_an_engine_that_dies_meanwhile_has_finished_everything() -> None:
    llm, _ = hooked()

    def die(payload: dict[str, Any]) -> Any:
        llm.die()
        return asyncio.get_running_loop().create_future()

    llm.replies["nnrp_abort"] = die
    with anyio.fail_after(5):
        await llm.add_request("one")
        await llm.add_request("other")
        (receipt,) = await _abort(llm, "one")
    assert _short(receipt) == ("finished", False, False, 0)
    assert llm.ledger.live == []


async def test_programs_agents_and_ids_name_what_is_stopped() -> None:
    llm, _ = hooked()
    Scheduler(llm)
    control = Control(llm, llm.ledger)
    names = {"a": ("p", "x"), "b": ("p", "y"), "c": ("q", "x"), "d": (None, None)}
    with anyio.fail_after(5):
        for name, (program, agent) in names.items():
            _stopped_at_the_door(llm, Caller(program, agent, operation=f"1.{name}"), name)
        by_program = await control.abort_operations(["p"], by="program")
        assert [one.request_id for one in by_program] == ["1.a", "1.b"]
        # With one frontend there is nothing elsewhere to look for.
        assert llm.calls == []
        by_id = await control.abort_operations(["1.c", "gone"], by="id")
    assert [(one.request_id, *_short(one)) for one in by_id] == [
        ("1.c", "admitting", True, True, 0),
        ("gone", "unknown", False, True, None),
    ]


async def test_what_an_engine_has_been_asked_for_by_name_is_pending_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nnrp_sched_patches.control.PENDING_AFTER_S", 0.01)
    llm, _ = hooked()
    control = Control(llm, llm.ledger)
    llm.replies["nnrp_abort"] = lambda payload: asyncio.get_running_loop().create_future()
    with anyio.fail_after(5):
        (receipt,) = await control.abort_operations(["there"], by="id")
        assert (receipt.request_id, *_short(receipt)) == ("there", "pending", False, False, None)
        assert await control.abort_operations(["there"], by="program") == []
        # Nothing of it is remembered.
        Scheduler(llm)
        (receipt,) = await control.abort_operations(["there"], by="id")
    assert _short(receipt) == ("unknown", False, True, None)


async def test_requests_of_other_frontends_are_stopped_in_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm, _ = hooked()
    llm.client_count = 2
    scheduler = Scheduler(llm)
    control = Control(llm, llm.ledger)
    scheduler.elsewhere = {
        "0_two-12345678": Told("two", "p", "x"),
        "1_two-12345678": Told("two", "p", "x"),
        "three-12345678": Told("7.3", "q", "x"),
        "four-12345678": Told("four"),
    }
    scheduler.states = dict.fromkeys(scheduler.elsewhere, ("running", 3))
    with anyio.fail_after(5):
        _stopped_at_the_door(llm, Caller("p", "z", operation="1.1"), "o")
        by_program = await control.abort_operations(["p"], by="program")
        by_agent = await control.abort_operations(["x", "nobody"], by="agent")
        by_id = await control.abort_operations(["1.1", "four", "never"], by="id")
        assert await control.abort_operations(["four"], by="id") == by_id[1:2]
        monkeypatch.setattr("nnrp_sched_patches.control.STOPPED_KEPT", 1)
        scheduler.elsewhere["five-12345678"] = Told("five")
        scheduler.states["five-12345678"] = ("waiting", 0)
        last = await control.abort_operations(["five", "four"], by="id")
    # Of those stopped elsewhere a bounded number is remembered.
    assert [_short(one)[:2] for one in last] == [("waiting", True), ("unknown", False)]
    assert [(one.request_id, *_short(one)) for one in by_program] == [
        ("1.1", "admitting", True, True, 0),
        ("two", "running", True, True, 6),
    ]
    # The other one of that agent is gone by now.
    assert [(one.request_id, *_short(one)) for one in by_agent] == [
        ("7.3", "running", True, True, 3)
    ]
    assert [(one.request_id, *_short(one)) for one in by_id] == [
        ("1.1", "admitting", True, True, 0),
        ("four", "running", True, True, 3),
        ("never", "unknown", False, True, None),
    ]


async def test_a_live_request_elsewhere_counts_before_an_ended_one_of_that_name_here() -> None:
    llm, _ = hooked()
    llm.client_count = 2
    scheduler = Scheduler(llm)
    control = Control(llm, llm.ledger)
    llm.replies["nnrp_tell"] = lambda payload: {"requests": 0}
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
        end = output(internal, 1, finish=FinishReason.STOP)
        llm.output_processor.process_outputs([end], 1.0)
        (ended,) = await control.abort_operations(["one"], by="id")
        scheduler.elsewhere["one-12345678"] = Told("one")
        scheduler.states["one-12345678"] = ("waiting", 0)
        (live,) = await control.abort_operations(["one"], by="id")
    assert _short(ended) == ("finished", False, True, 1)
    assert _short(live) == ("waiting", True, True, 0)


async def test_without_the_engines_word_an_unknown_id_is_not_certainly_unknown() -> None:
    llm, _ = hooked()
    control = Control(llm, llm.ledger)
    llm.replies["nnrp_abort"] = lambda payload: {"error": "hook E1.abort is off"}
    with anyio.fail_after(5):
        (receipt,) = await control.abort_operations(["never"], by="id")
    assert _short(receipt) == ("unknown", False, False, None)


async def test_priorities_change_for_what_waits_and_say_why_not_otherwise() -> None:
    llm, _ = hooked()
    control = Control(llm, llm.ledger)
    outcomes = {"one": "applied", "two": "not_waiting", "three": "policy_fcfs"}

    def answer(payload: dict[str, Any]) -> dict[str, Any]:
        return {"requests": {one: outcomes[external_id(one)] for one in payload["ids"]}}

    llm.replies["nnrp_set_priority"] = answer
    with anyio.fail_after(5):
        for name in outcomes:
            await llm.add_request(name)
        told = {name: await control.reprioritize(name, -3) for name in (*outcomes, "never")}
        assert {name: (one.applied, one.reason) for name, one in told.items()} == {
            "one": (True, "applied"),
            "two": (False, "not_waiting"),
            "three": (False, "policy_fcfs"),
            "never": (False, "unknown"),
        }
        del llm.replies["nnrp_set_priority"]
        assert (await control.reprioritize("one", 0)).reason == "unsupported"
    entry = llm.ledger.find("one")
    assert entry is not None
    assert entry.priority == -3
