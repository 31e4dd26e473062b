"""The scripted engine's queue: slots, turns, snapshots, aborts and changes of priority."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.engine.records import AbortReceipt, Caller, ChatCall, QueueSnapshot
from nnrp_sched.engine.scripted import Policy, ScriptedEngine
from nnrp_sched.engine.scripted_queue import LiveCall, ScriptedQueue

pytestmark = pytest.mark.anyio


class Ticks:
    """A clock that moves one millisecond a look."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 1
        return self._now


def call(name: str, priority: int = 0, **caller: Any) -> ChatCall:
    body = {
        "model": "example-model",
        "messages": [{"role": "user", "content": "x"}],
        "scripted": {"text": ["a"], "hold": True},
    }
    return ChatCall(name, body, priority=priority, caller=Caller(**caller))


@asynccontextmanager
async def calls(engine: ScriptedEngine, *held: ChatCall) -> AsyncGenerator[dict[str, str]]:
    """These calls in flight, in this order, for the block; maps each to its finish reason."""
    finished: dict[str, str] = {}

    async def run(each: ChatCall) -> None:
        body = await engine.complete(each)
        finished[each.request_id] = body["choices"][0]["finish_reason"]

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for number, each in enumerate(held, 1):
                tasks.start_soon(run, each)
                while len((await engine.queue()).operations) < number:
                    await anyio.lowlevel.checkpoint()
            yield finished
            tasks.cancel_scope.cancel()
    assert (await engine.queue()).operations == ()


def places(snapshot: QueueSnapshot) -> list[tuple[str, str, int | None]]:
    return [(row.id, row.state, row.position) for row in snapshot.operations]


async def test_calls_beyond_the_slots_wait_by_priority_and_then_by_arrival() -> None:
    engine = ScriptedEngine(slots=1)
    async with calls(engine, call("a"), call("late", 5), call("b"), call("urgent", -5)):
        snapshot = await engine.queue()
    assert places(snapshot) == [
        ("a", "running", None),
        ("urgent", "waiting", 0),
        ("b", "waiting", 1),
        ("late", "waiting", 2),
    ]
    assert (snapshot.running, snapshot.waiting, snapshot.authoritative) == (1, 3, True)


async def test_a_row_says_who_asks_and_since_when() -> None:
    engine = ScriptedEngine(slots=1, clock=Ticks())
    who = {"program": "p", "agent": "a", "parent": "main", "operation": "1.7"}
    async with calls(engine, call("first"), call("second", 3, **who)):
        first, second = (await engine.queue()).operations
        later = (await engine.queue()).operations[1]
    assert (second.id, second.program, second.agent, second.parent) == ("1.7", "p", "a", "main")
    assert (second.priority, second.source, second.tokens) == (3, "nnrp", 0)
    assert second.timings.queued is not None
    assert second.timings.scheduled is None
    assert later.queue_delay_ms == second.queue_delay_ms + 1
    assert first.timings.scheduled is not None
    assert first.timings.queued is not None
    assert first.queue_delay_ms == first.timings.scheduled - first.timings.queued


async def test_the_next_in_turn_runs_when_a_slot_is_free() -> None:
    engine = ScriptedEngine(slots=1)
    async with calls(engine, call("a"), call("late", 1), call("b")) as finished:
        await engine.abort("a")
        while "a" not in finished:
            await anyio.lowlevel.checkpoint()
        assert places(await engine.queue()) == [("b", "running", None), ("late", "waiting", 0)]
    assert finished == {"a": "abort"}


async def test_a_waiting_call_ends_at_once_when_aborted_and_never_runs() -> None:
    engine = ScriptedEngine(slots=1)
    async with calls(engine, call("a"), call("b")) as finished:
        assert await engine.abort("b") == AbortReceipt("b", "waiting", True, True, 0, 0.0)
        while "b" not in finished:
            await anyio.lowlevel.checkpoint()
        assert places(await engine.queue()) == [("a", "running", None)]
    assert finished == {"b": "abort"}


async def test_aborts_by_id_answer_each_id_in_order() -> None:
    engine = ScriptedEngine(slots=1)
    async with calls(engine, call("a", operation="1.1"), call("b", operation="1.2")):
        receipts = await engine.abort_operations(["1.2", "a", "1.1"], by="id")
    assert [(each.request_id, each.state, each.accepted) for each in receipts] == [
        ("1.2", "waiting", True),
        ("a", "unknown", False),
        ("1.1", "running", True),
    ]


@pytest.mark.parametrize(
    ("by", "name", "hit"), [("program", "p", ["1", "2"]), ("agent", "x", ["2", "3"])]
)
async def test_aborts_by_program_or_agent_take_out_exactly_theirs(
    by: Any, name: str, hit: list[str]
) -> None:
    engine = ScriptedEngine()
    held = (
        call("1", program="p", agent="y"),
        call("2", program="p", agent="x"),
        call("3", program="q", agent="x", parent="y"),
        call("4"),
    )
    async with calls(engine, *held):
        receipts = await engine.abort_operations([name], by=by)
        again = await engine.abort_operations([name], by=by)
    assert [each.request_id for each in receipts if each.accepted] == hit
    assert again == []


@pytest.mark.parametrize(
    ("policy", "name", "reason"),
    [
        ("priority", "2.2", "applied"),
        ("priority", "2.1", "not_waiting"),
        ("priority", "b", "unknown"),
        ("fcfs", "2.2", "policy_fcfs"),
    ],
)
async def test_a_change_of_priority_says_whether_it_was_applied(
    policy: Policy, name: str, reason: str
) -> None:
    engine = ScriptedEngine(slots=1, policy=policy)
    held = (call("a", operation="2.1"), call("c"), call("b", operation="2.2"))
    async with calls(engine, *held):
        done = await engine.reprioritize(name, -1)
        order = [row.id for row in (await engine.queue()).operations if row.position is not None]
    assert (done.request_id, done.applied, done.reason) == (name, reason == "applied", reason)
    assert order == (["2.2", "c"] if reason == "applied" else ["c", "2.2"])


async def test_under_fcfs_priorities_change_nothing() -> None:
    engine = ScriptedEngine(slots=1, policy="fcfs")
    async with calls(engine, call("a"), call("late", 5), call("urgent", -5)):
        order = [row.id for row in (await engine.queue()).operations]
    assert order == ["a", "late", "urgent"]


Step = tuple[str, int, int]


@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.sampled_from(["enter", "abort", "leave", "reprioritize"]),
            st.integers(0, 7),
            st.integers(-2, 2),
        ),
        max_size=60,
    ),
)
def test_whatever_happens_slots_are_full_while_anybody_waits(slots: int, steps: list[Step]) -> None:
    queue = ScriptedQueue(slots, "priority", Ticks())
    live: dict[str, LiveCall] = {}
    for step, number, priority in steps:
        name = str(number)
        if step == "enter" and name not in live:
            live[name] = queue.enter(call(name, priority))
        elif step == "abort":
            expected = name in live and not live[name].aborted.is_set()
            assert queue.abort(name).accepted == expected
        elif step == "leave" and name in live:
            queue.leave(live.pop(name))
        elif step == "reprioritize":
            queue.reprioritize(name, priority)
        snapshot = queue.snapshot()
        waiting = [row for row in snapshot.operations if row.state == "waiting"]
        assert snapshot.running == slots or (snapshot.running < slots and not waiting)
        assert [row.position for row in waiting] == list(range(len(waiting)))
        assert [row.priority for row in waiting] == sorted(row.priority for row in waiting)
    for each in list(live.values()):
        queue.leave(each)
    assert queue.snapshot().operations == ()
