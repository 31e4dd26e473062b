"""Control messages about operations: what each of them does, and that one terminal follows."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from nnrp_sched.engine.records import AbortReceipt, ChatBody, ChatCall
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.profile import Cancelled, Completed, build_control, build_envelope
from nnrp_sched.server import ServerLimits
from nnrp_sched.server.ending import Asked, Ending
from nnrp_sched.server.operation import Operation
from nnrp_sched.server.session import Session
from nnrp_sched.wire import (
    BudgetUpdate,
    ControlRequest,
    DropReason,
    ErrorCode,
    HintFlag,
    MessageType,
    Packet,
    ResultDropped,
    RouteHint,
    Scheduling,
    SchedulingFlag,
    encode_packet,
)
from nnrp_sched.wire.session_messages import TransportProbe, TransportProbeAck
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, body, script, scripted_server

pytestmark = pytest.mark.anyio

STREAM: dict[str, Any] = {"stream": True}
HELD = script(text="x", hold=True) | STREAM
ENDLESS = script(text=" word", repeat=1_000_000) | STREAM
FAR_MS = 4_000_000_000_000
"""In the year 2096."""


class Case:
    """A peer with one session, and what became of its operations."""

    def __init__(self, engine: ScriptedEngine, records: list[OperationRecord]) -> None:
        self.engine = engine
        self.records = records
        self.peer: RawPeer
        self.session_id = 0
        self.operation_id = 100

    def submit(self, chat: dict[str, Any], **members: Any) -> tuple[int, bytes]:
        """Frame id and bytes of a submit; its operation id is `operation_id` then."""
        self.operation_id += 1
        return self.peer.wire.submit(
            self.session_id, build_envelope(chat, **members), operation_id=self.operation_id
        )

    async def started(self, chat: dict[str, Any]) -> int:
        """Submit a streaming chat and wait for its first event."""
        frame_id, data = self.submit(chat)
        await self.peer.send(data)
        with anyio.fail_after(SECONDS):
            while not any(
                packet.message_type is MessageType.PARTIAL_RESULT and packet.frame_id == frame_id
                for packet in self.peer.packets
            ):
                await self.peer.next_event()
        return frame_id

    async def record_of(self, frame_id: int) -> OperationRecord:
        with anyio.fail_after(SECONDS):
            while True:
                for record in self.records:
                    if record.frame_id == frame_id:
                        return record
                await anyio.lowlevel.checkpoint()

    def refusals(self) -> list[bytes]:
        """The texts of every ERROR_RECOVERABLE so far."""
        return [
            packet.body
            for packet in self.peer.packets
            if packet.message_type is MessageType.ERROR_RECOVERABLE
        ]


@asynccontextmanager
async def case(
    engine: ScriptedEngine | None = None, limits: ServerLimits | None = None
) -> AsyncGenerator[Case, None]:
    records: list[OperationRecord] = []
    made = Case(engine or ScriptedEngine(), records)
    async with scripted_server(made.engine, limits, observers=[records.append]) as served:
        made.peer = RawPeer(served.dial())
        made.session_id = await made.peer.open()
        yield made
        assert (await made.engine.queue()).operations == ()


def scheduling(kind: MessageType, session_id: int, frame_id: int, **values: Any) -> bytes:
    members: dict[str, Any] = {
        "control_sequence": 1,
        "priority_class": 1,
        "priority_delta": 0,
        "deadline_unix_ms": 0,
        "flags": SchedulingFlag.EMIT_DROP_REASON,
    }
    metadata = Scheduling(**(members | values))
    return encode_packet(Packet(kind, metadata, session_id=session_id, frame_id=frame_id))


# --- deadlines ------------------------------------------------------------------------------------

BOTH_LIMITS = pytest.mark.parametrize("kind", ["deadline", "expire_at"])


@BOTH_LIMITS
async def test_an_operation_whose_time_is_over_is_dropped_and_its_work_stopped(kind: str) -> None:
    async with case() as it:
        frame_id = await it.started(HELD)
        await it.peer.send(getattr(it.peer.wire, kind)(it.session_id, frame_id, 1))
        _, dropped = await it.peer.result(frame_id)
        record = await it.record_of(frame_id)
    assert isinstance(dropped, ResultDropped)
    assert (dropped.reason, dropped.diagnostic) == (
        DropReason.DEADLINE_EXPIRED,
        "deadline_expired",
    )
    assert record.abort is not None
    assert record.abort.reason == kind
    assert isinstance(record.abort.receipt, AbortReceipt)
    assert record.abort.receipt.accepted


@BOTH_LIMITS
async def test_a_limit_in_the_future_ends_the_operation_then(kind: str) -> None:
    async with case() as it:
        frame_id = await it.started(HELD)
        soon = anyio.current_time()
        wall_ms = round(time.time() * 1000) + 60
        await it.peer.send(getattr(it.peer.wire, kind)(it.session_id, frame_id, wall_ms))
        _, dropped = await it.peer.result(frame_id)
        assert anyio.current_time() - soon >= 0.05
    assert isinstance(dropped, ResultDropped)
    assert dropped.reason is DropReason.DEADLINE_EXPIRED


@BOTH_LIMITS
async def test_a_limit_before_its_submit_is_kept_and_the_engine_never_called(kind: str) -> None:
    engine = _Counting()
    async with case(engine) as it:
        message = MessageType[kind.upper()]
        early = scheduling(message, it.session_id, 1, operation_id=101, deadline_unix_ms=1)
        frame_id, submit = it.submit(body())
        await it.peer.send(early + submit)
        _, dropped = await it.peer.result(frame_id)
        record = await it.record_of(frame_id)
    assert isinstance(dropped, ResultDropped)
    assert (engine.calls, record.dispatched) == (0, None)


async def test_a_far_limit_before_its_submit_lets_it_succeed() -> None:
    async with case() as it:
        early = scheduling(
            MessageType.DEADLINE, it.session_id, 1, operation_id=101, deadline_unix_ms=FAR_MS
        )
        frame_id, submit = it.submit(body())
        await it.peer.send(early + submit)
        _, terminal = await it.peer.result(frame_id)
    assert isinstance(terminal, Completed)


async def test_a_later_word_on_a_deadline_replaces_the_earlier_one() -> None:
    async with case() as it:
        frame_id, submit = it.submit(script(text=["a", "b"], delay_ms=30) | STREAM)
        soon = round(time.time() * 1000) + 20
        wire = it.peer.wire
        data = wire.deadline(it.session_id, frame_id, soon)
        data += wire.deadline(it.session_id, frame_id, 2**64 - 1)
        await it.peer.send(submit + data)
        _, terminal = await it.peer.result(frame_id)
    assert isinstance(terminal, Completed)


async def test_an_overtaken_deadline_changes_nothing() -> None:
    async with case() as it:
        frame_id = await it.started(HELD)
        newest = scheduling(
            MessageType.DEADLINE,
            it.session_id,
            frame_id,
            operation_id=it.operation_id,
            control_sequence=7,
            deadline_unix_ms=FAR_MS,
        )
        overtaken = scheduling(
            MessageType.DEADLINE,
            it.session_id,
            frame_id,
            operation_id=it.operation_id,
            control_sequence=6,
            deadline_unix_ms=1,
        )
        await it.peer.send(newest + overtaken)
        await it.peer.send(it.peer.wire.cancel(it.session_id, frame_id))
        _, terminal = await it.peer.result(frame_id)
    assert terminal == Cancelled(reason="peer_cancelled")


async def test_the_limit_that_is_over_first_ends_the_operation() -> None:
    async with case() as it:
        frame_id, submit = it.submit(HELD, timeout_ms=20)
        data = it.peer.wire.deadline(it.session_id, frame_id, FAR_MS)
        await it.peer.send(submit + data)
        _, terminal = await it.peer.result(frame_id)
    assert b"request_timeout" in it.peer.terminals(frame_id)[0].body
    assert not isinstance(terminal, ResultDropped)


async def test_a_watch_has_a_deadline_too() -> None:
    async with case() as it:
        document = build_control("queue.watch", {"per_second": 50})
        frame_id, data = it.peer.wire.submit(it.session_id, document, operation_id=1)
        await it.peer.send(data + it.peer.wire.deadline(it.session_id, frame_id, 1))
        _, dropped = await it.peer.result(frame_id)
    assert isinstance(dropped, ResultDropped)
    assert dropped.reason is DropReason.DEADLINE_EXPIRED


class _Counting(ScriptedEngine):
    """Counts the calls it gets."""

    calls = 0

    async def complete(self, call: ChatCall) -> ChatBody:
        self.calls += 1
        return await super().complete(call)


# --- supersession ---------------------------------------------------------------------------------


async def test_an_operation_gives_way_at_once_when_told_so() -> None:
    async with case() as it:
        frame_id = await it.started(HELD)
        await it.peer.send(
            it.peer.wire.supersede(it.session_id, frame_id, 999, now=True, diagnostic="turn 2")
        )
        _, dropped = await it.peer.result(frame_id)
        record = await it.record_of(frame_id)
    assert isinstance(dropped, ResultDropped)
    assert (dropped.reason, dropped.diagnostic) == (DropReason.SUPERSEDED, "turn 2")
    assert record.abort is not None
    assert record.abort.reason == "supersede"


async def test_an_operation_gives_way_when_the_newer_one_has_been_admitted() -> None:
    async with case() as it:
        older = await it.started(HELD)
        await it.peer.send(it.peer.wire.supersede(it.session_id, older, it.operation_id + 1))
        newer, submit = it.submit(body())
        assert it.peer.terminals(older) == []
        await it.peer.send(submit)
        _, dropped = await it.peer.result(older)
        await it.peer.until_terminal(newer)
    assert isinstance(dropped, ResultDropped)
    assert (dropped.reason, dropped.diagnostic) == (DropReason.SUPERSEDED, "superseded")
    assert b"response.completed" in it.peer.terminals(newer)[0].body


async def test_an_operation_gives_way_to_one_that_runs_already() -> None:
    async with case() as it:
        older = await it.started(HELD)
        newer = await it.started(HELD)
        await it.peer.send(it.peer.wire.supersede(it.session_id, older, it.operation_id))
        _, dropped = await it.peer.result(older)
        await it.peer.send(it.peer.wire.cancel(it.session_id, newer))
        _, terminal = await it.peer.result(newer)
    assert isinstance(dropped, ResultDropped)
    assert dropped.reason is DropReason.SUPERSEDED
    assert terminal == Cancelled(reason="peer_cancelled")


async def test_a_newer_operation_that_is_refused_replaces_nothing() -> None:
    async with case() as it:
        older = await it.started(HELD)
        await it.peer.send(it.peer.wire.supersede(it.session_id, older, it.operation_id + 1))
        refused, submit = it.submit({"model": "example-model"})
        await it.peer.send(submit)
        await it.peer.until_terminal(refused)
        await it.peer.send(it.peer.wire.cancel(it.session_id, older))
        _, terminal = await it.peer.result(older)
    assert terminal == Cancelled(reason="peer_cancelled")


async def test_the_last_word_on_who_comes_next_counts_and_nothing_is_kept_of_the_others() -> None:
    async with case() as it:
        older = await it.started(HELD)
        for newer in range(1000, 1100):
            await it.peer.send(it.peer.wire.supersede(it.session_id, older, newer))
        it.operation_id = 1049
        passed, submit = it.submit(body())  # Operation 1050, which nobody waits for any more.
        await it.peer.send(submit)
        await it.peer.until_terminal(passed)
        assert it.peer.terminals(older) == []
        it.operation_id = 1098
        newest, submit = it.submit(body())
        await it.peer.send(submit)
        _, dropped = await it.peer.result(older)
        await it.peer.until_terminal(newest)
    assert isinstance(dropped, ResultDropped)


# --- budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_spent_token_budget_ends_the_operation_with_what_was_produced(
    streamed: bool,
) -> None:
    chat = script(text=" word", repeat=1_000_000, delay_ms=0.5) | {"stream": streamed}
    async with case() as it:
        frame_id, submit = it.submit(chat)
        await it.peer.send(submit + it.peer.wire.budget_update(it.session_id, frame_id, 10))
        events, terminal = await it.peer.result(frame_id)
        record = await it.record_of(frame_id)
    assert isinstance(terminal, Completed)
    choice = terminal.body["choices"][0]
    words = choice["message"]["content"].split()
    assert len(words) >= 10
    assert choice["finish_reason"] == "length"
    assert record.outcome == "completed"
    assert record.abort is not None
    assert record.abort.reason == "budget"
    assert isinstance(record.abort.receipt, AbortReceipt)
    assert record.abort.receipt.accepted
    if streamed:
        # Between two looks at the count, no more than one chunk comes.
        assert len(words) <= 12
        assert "".join(getattr(event, "delta", "") for event in events).split() == words


async def test_a_larger_or_lifted_budget_lets_the_operation_go_on() -> None:
    async with case() as it:
        for more in ("replace", "lift", "increment"):
            frame_id, submit = it.submit(script(text=" w", repeat=30) | STREAM)
            wire, ids = it.peer.wire, (it.session_id, 0)
            data = wire.budget_update(ids[0], frame_id, 20)
            if more == "increment":
                data += _budget(it, frame_id, token_budget=11, flags=2)
            else:
                data += wire.budget_update(ids[0], frame_id, 100 if more == "replace" else 0)
            await it.peer.send(submit + data)
            _, terminal = await it.peer.result(frame_id)
            assert isinstance(terminal, Completed)
            assert terminal.body["choices"][0]["finish_reason"] == "stop", more


async def test_an_increment_of_no_budget_is_no_budget() -> None:
    async with case() as it:
        frame_id, submit = it.submit(script(text=" w", repeat=30) | STREAM)
        await it.peer.send(submit + _budget(it, frame_id, token_budget=1, flags=2))
        _, terminal = await it.peer.result(frame_id)
    assert isinstance(terminal, Completed)
    assert terminal.body["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("other", ["compute", "memory", "bandwidth"])
async def test_a_budget_of_anything_but_tokens_is_refused_as_a_whole(other: str) -> None:
    async with case() as it:
        frame_id = await it.started(HELD)
        await it.peer.send(_budget(it, frame_id, token_budget=1, **{other: 5}))
        await it.peer.send(it.peer.wire.cancel(it.session_id, frame_id))
        _, terminal = await it.peer.result(frame_id)
        (refusal,) = it.refusals()
    assert refusal.startswith(b"budget_update_unsupported")
    assert terminal == Cancelled(reason="peer_cancelled")


@pytest.mark.parametrize("end", ["cancel", "abort", "lost"])
async def test_whoever_ends_an_operation_while_its_budget_is_settled_has_the_last_word(
    end: str,
) -> None:
    engine = _SlowToEnd()
    async with case(engine) as it:
        frame_id = await it.started(ENDLESS)
        await it.peer.send(it.peer.wire.budget_update(it.session_id, frame_id, 1))
        with anyio.fail_after(SECONDS):
            await engine.asked.wait()
        if end == "lost":
            await it.peer.carrier.aclose()
        else:
            await it.peer.send(getattr(it.peer.wire, end)(it.session_id, frame_id))
            _, terminal = await it.peer.result(frame_id)
            assert isinstance(terminal, Cancelled if end == "cancel" else ResultDropped)
        engine.may_end.set()
        record = await it.record_of(frame_id)
    assert record.outcome == {"cancel": "cancelled", "abort": "dropped", "lost": "silent"}[end]
    assert len(it.peer.terminals(frame_id)) == (end != "lost")


async def test_an_engine_that_does_not_end_a_spent_operation_in_time_loses_it() -> None:
    engine = _SlowToEnd(confirms=True)
    async with case(engine, ServerLimits(abort_seconds=0.05)) as it:
        frame_id = await it.started(HELD)
        await it.peer.send(it.peer.wire.budget_update(it.session_id, frame_id, 1))
        _, dropped = await it.peer.result(frame_id)
    assert isinstance(dropped, ResultDropped)
    assert dropped.reason is DropReason.BUDGET


class _SlowToEnd(ScriptedEngine):
    """Takes its time over an abort, or confirms one and does nothing."""

    def __init__(self, *, confirms: bool = False) -> None:
        super().__init__()
        self._confirms = confirms
        self.asked = anyio.Event()
        self.may_end = anyio.Event()

    async def abort(self, request_id: str) -> AbortReceipt:
        self.asked.set()
        if self._confirms:
            return AbortReceipt(request_id, "running", True, True, 1, 0.0)
        with anyio.move_on_after(1):
            await self.may_end.wait()
        return await super().abort(request_id)


def _budget(it: Case, frame_id: int, **values: int) -> bytes:
    members = {"compute": 0, "memory": 0, "bandwidth": 0, "token_budget": 0, "flags": 1}
    metadata = BudgetUpdate(operation_id=it.operation_id, **(members | values))
    return encode_packet(
        Packet(MessageType.BUDGET_UPDATE, metadata, session_id=it.session_id, frame_id=frame_id)
    )


# --- hints, probes, unknown operations ------------------------------------------------------------


@pytest.mark.parametrize("kind", [MessageType.ROUTE_HINT, MessageType.EXECUTION_HINT])
@pytest.mark.parametrize("flags", [0, HintFlag.MUST_HONOR, HintFlag.BEST_EFFORT])
async def test_a_route_that_must_be_honoured_is_refused_and_any_other_passed_over(
    kind: MessageType, flags: int
) -> None:
    async with case() as it:
        frame_id = await it.started(HELD)
        hint = RouteHint(
            operation_id=it.operation_id,
            route_id=3,
            executor_class=3,
            affinity_class=0,
            deadline_unix_ms=0,
            body_bytes=0,
            flags=flags,
        )
        await it.peer.send(
            encode_packet(Packet(kind, hint, session_id=it.session_id, frame_id=frame_id))
        )
        await it.peer.send(it.peer.wire.cancel(it.session_id, frame_id))
        await it.peer.result(frame_id)
        told = it.refusals()
    assert told == [f"{kind.name.lower()}_unsupported".encode()] * (flags == HintFlag.MUST_HONOR)


@pytest.mark.parametrize(
    "kind", [MessageType.CANCEL, MessageType.DEADLINE, MessageType.PRIORITY_UPDATE]
)
async def test_a_message_about_an_operation_that_never_was_is_answered_and_nothing_ends(
    kind: MessageType,
) -> None:
    async with case() as it:
        frame_id = await it.started(HELD)
        if kind is MessageType.CANCEL:
            request = ControlRequest(
                operation_id=77,
                control_sequence=1,
                reason=1,
                source_role=1,
                flags=1,
                diagnostic_bytes=0,
            )
            wrong = encode_packet(
                Packet(kind, request, session_id=it.session_id, frame_id=frame_id)
            )
        else:
            wrong = scheduling(kind, it.session_id, frame_id, operation_id=77, deadline_unix_ms=1)
        await it.peer.send(wrong)
        await it.peer.send(it.peer.wire.cancel(it.session_id, frame_id))
        _, terminal = await it.peer.result(frame_id)
        errors = [
            getattr(packet.metadata, "code", 0)
            for packet in it.peer.packets
            if packet.message_type is MessageType.ERROR_RECOVERABLE
        ]
    assert errors == [ErrorCode.INVALID_STATE]
    assert terminal == Cancelled(reason="peer_cancelled")


async def test_a_probe_is_answered_with_the_servers_time() -> None:
    async with case() as it:
        probe = TransportProbe(probe_id=9, payload_bytes=3, client_ts_us=0)
        before = time.time() * 1e6 - 1
        await it.peer.send(encode_packet(Packet(MessageType.TRANSPORT_PROBE, probe, b"abc")))
        frame_id, submit = it.submit(body())
        await it.peer.send(submit)
        await it.peer.result(frame_id)
        (answer,) = [
            packet.metadata
            for packet in it.peer.packets
            if packet.message_type is MessageType.TRANSPORT_PROBE_ACK
        ]
    assert isinstance(answer, TransportProbeAck)
    assert answer.probe_id == 9
    assert before <= answer.server_ts_us <= time.time() * 1e6


async def test_nothing_is_said_of_control_messages_in_the_body_the_engine_gets() -> None:
    engine = _Keeping()
    chat = body()
    async with case(engine) as it:
        frame_id, submit = it.submit(chat)
        wire = it.peer.wire
        data = wire.deadline(it.session_id, frame_id, FAR_MS)
        data += wire.budget_update(it.session_id, frame_id, 1000)
        data += wire.priority_update(it.session_id, frame_id, 2)
        await it.peer.send(submit + data)
        await it.peer.result(frame_id)
    assert msgspec.json.encode(engine.body) == msgspec.json.encode(chat)


class _Keeping(ScriptedEngine):
    """Keeps the body of its call."""

    body: ChatBody | None = None

    async def complete(self, call: ChatCall) -> ChatBody:
        self.body = call.body
        return await super().complete(call)


async def test_a_hundred_thousand_supersessions_cost_no_more_each_than_a_few() -> None:
    """Who waits for whom is looked up, not searched for: nothing grows but the last words."""
    session = Session(1, 1)
    for frame_id in range(1, 1001):
        session.add(frame_id, _Standing())
    for number in range(100_000):
        session.give_way(1 + number % 1000, 10_000 + number, "")
    newest = _Standing()
    session.add(1001, newest, 109_999)  # The last word of frame 1000.
    assert [
        frame_id
        for frame_id, each in session.items()
        if isinstance(each, _Standing) and each.endings
    ] == [1000]
    for frame_id in range(1, 1002):
        session.remove(frame_id)
    assert len(session) == 0


class _Standing(Operation):
    """An operation that only notes how it is ended."""

    def __init__(self) -> None:
        self.endings: list[Ending] = []

    def stop(self, ending: Ending, diagnostic: str = "", asked: Asked | None = None) -> None:
        self.endings.append(ending)
