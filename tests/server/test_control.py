"""Control requests: what they answer, how they end, and what bounds them."""

from typing import Any

import anyio
import msgspec
import pytest

from nnrp_sched.client import Session
from nnrp_sched.engine.records import AbortReceipt, QueueSnapshot
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import BackendError, ProfileError
from nnrp_sched.profile import (
    Cancelled,
    Completed,
    Error,
    build_control,
    build_envelope,
    decode_event,
)
from nnrp_sched.profile.workflow import Workflow
from nnrp_sched.server import ServerLimits
from nnrp_sched.wire import DropReason, InFlightPolicy, ResultDropped, ResultReceived, SessionClosed
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, body, script, scripted_server, scripted_session

pytestmark = pytest.mark.anyio

HELD: dict[str, Any] = script(text="x", hold=True)
WATCH = build_control("queue.watch", {"per_second": 50})


async def until_rows(session: Session, count: int) -> QueueSnapshot:
    """The first snapshot with as many rows."""
    while len((snapshot := await session.queue()).operations) != count:
        pass
    return snapshot


async def test_a_snapshot_shows_who_runs_and_who_waits_with_their_workflow() -> None:
    async with scripted_session(ScriptedEngine(slots=1)) as (_, session):
        with anyio.fail_after(SECONDS):
            first = session.chat(HELD, stream=True)
            await anext(first)
            asked = Workflow(program="p", agent="child", parent="main", step=3, role="explorer")
            async with anyio.create_task_group() as tasks:
                second = session.chat(body(), workflow=asked)
                tasks.start_soon(second.result)
                snapshot = await until_rows(session, 2)
                running, waiting = snapshot.operations
                assert (running.id, running.state, running.tokens) == (first.name, "running", 1)
                assert (waiting.id, waiting.state, waiting.position) == (second.name, "waiting", 0)
                assert (waiting.program, waiting.agent, waiting.parent) == ("p", "child", "main")
                assert (snapshot.running, snapshot.waiting) == (1, 1)
                assert snapshot.authoritative
                await first.cancel()


@pytest.mark.parametrize(
    ("operation", "asked", "named"),
    [
        ("operation.abort", {}, "exactly one"),
        ("operation.abort", {"ids": ["1.1"], "agent": "a"}, "exactly one"),
        ("operation.abort", {"ids": []}, "ids"),
        ("operation.abort", {"ids": ["x"] * 1025}, "ids"),
        ("operation.abort", {"agnet": "a"}, "agnet"),
        ("program.cancel", {"program": ""}, "program"),
        ("program.cancel", {}, "program"),
        ("operation.reprioritize", {"id": "1.1"}, "priority"),
        ("operation.reprioritize", {"id": "1.1", "priority": 2**31}, "priority"),
        ("queue.watch", {"per_second": 0}, "per_second"),
        ("queue.watch", {"per_second": "often"}, "per_second"),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused_by_name(
    operation: str, asked: dict[str, Any], named: str
) -> None:
    async with scripted_session() as (served, session):
        with anyio.fail_after(SECONDS):
            outcome = await session.control(operation, asked).result()
        assert served.server.admission.control_operations == 0
    assert outcome.error is not None
    assert outcome.error.code == "invalid_body"
    assert named in outcome.error.message


async def test_an_operation_of_another_peer_is_aborted_and_that_peer_is_told() -> None:
    async with (
        scripted_session(ScriptedEngine(slots=1)) as (served, session),
        served.connect() as other,
        other.session() as victim,
    ):
        with anyio.fail_after(SECONDS):
            running = victim.chat(HELD, stream=True)
            await anext(running)
            waiting = RawPeer(served.dial())
            frame_id = await waiting.submit(await waiting.open(), HELD)
            row = (await until_rows(session, 2)).operations[1]
            receipts = await session.abort_operations([str(running.name), "9.9", row.id])
            _, terminal = await waiting.result(frame_id)
            outcome = await running.result()
    assert [(each.state, each.accepted, each.tokens) for each in receipts] == [
        ("running", True, 1),
        ("unknown", False, None),
        ("waiting", True, 0),
    ]
    assert [each.request_id for each in receipts] == [running.name, "9.9", row.id]
    assert (outcome.status, outcome.reason) == ("cancelled", "abort_requested")
    assert terminal == Cancelled(reason="abort_requested")


@pytest.mark.parametrize("by", ["program", "agent"])
async def test_aborting_a_program_or_an_agent_takes_out_its_live_operations_only(by: str) -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            chats = {
                name: session.chat(
                    HELD, stream=True, workflow=msgspec.convert({by: name}, Workflow)
                )
                for name in ("mine", "yours")
            }
            for chat in chats.values():
                await anext(chat)
            receipts = await session.abort_operations(**{by: "mine"})
            assert (await chats["mine"].result()).status == "cancelled"
            assert [row.id for row in (await session.queue()).operations] == [chats["yours"].name]
            again = await session.abort_operations(**{by: "mine"})
    assert [(each.request_id, each.accepted) for each in receipts] == [(chats["mine"].name, True)]
    assert again == []


async def test_program_cancel_is_the_same_for_a_program() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            chat = session.chat(HELD, stream=True, workflow=Workflow(program="p"))
            await anext(chat)
            answer = await session.control("program.cancel", {"program": "p"}).result()
            assert (await chat.result()).reason == "abort_requested"
    assert answer.body is not None
    assert answer.body["receipts"][0]["accepted"] is True


async def test_two_aborts_at_once_tell_the_same_receipt_and_one_terminal_follows() -> None:
    receipts: list[AbortReceipt] = []

    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, HELD | {"stream": True})
        async with served.connect() as connection, connection.session() as session:

            async def abort() -> None:
                receipts.extend(await session.abort_operations([f"{session_id}.{frame_id}"]))

            with anyio.fail_after(SECONDS):
                await until_rows(session, 1)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(abort)
                    tasks.start_soon(abort)
        await peer.result(frame_id)
        later = await peer.submit(session_id, body())
        await peer.result(later)
        assert len(peer.terminals(frame_id)) == 1
    assert len(receipts) == 2
    assert receipts[0].accepted
    assert receipts[1] == receipts[0] or receipts[1].state in ("finished", "unknown")


async def test_a_change_of_priority_moves_a_waiting_operation_forward() -> None:
    async with scripted_session(ScriptedEngine(slots=1)) as (_, session):
        with anyio.fail_after(SECONDS):
            running = session.chat(HELD, stream=True)
            await anext(running)
            finished: list[str | None] = []

            async def run(chat: Any) -> None:
                await chat.result()
                finished.append(chat.name)

            first, second = session.chat(body()), session.chat(body())
            assert (await second.reprioritize(0)).reason == "unknown"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, first)
                await until_rows(session, 2)
                tasks.start_soon(run, second)
                await until_rows(session, 3)
                done = await second.reprioritize(-7)
                order = (await session.queue()).operations[1:]
                stuck = await running.reprioritize(-7)
                assert (done.applied, done.reason, done.request_id) == (
                    True,
                    "applied",
                    second.name,
                )
                assert (stuck.applied, stuck.reason) == (False, "not_waiting")
                assert [(row.id, row.priority) for row in order] == [
                    (second.name, -7),
                    (first.name, 0),
                ]
                await running.cancel()
    assert finished == [second.name, first.name]


class _Failing(ScriptedEngine):
    """An engine whose queue cannot be had."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    async def queue(self) -> QueueSnapshot:
        if self._error is None:
            await anyio.sleep_forever()
        assert self._error is not None
        raise self._error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BackendError("busy", status=503), "backend_overload"),
        (ZeroDivisionError("a fault"), "adapter_runtime_error"),
        (None, "request_timeout"),
    ],
)
@pytest.mark.parametrize("operation", ["queue.snapshot", "queue.watch"])
async def test_an_engine_that_fails_or_hangs_ends_the_request_alone(
    error: Exception | None, code: str, operation: str
) -> None:
    limits = ServerLimits(control_seconds=0.05)
    async with scripted_session(_Failing(error), limits) as (served, session):
        with anyio.fail_after(SECONDS):
            outcome = await session.control(operation).result()
            healthy = await session.chat(body()).result()
        assert served.server.admission.control_operations == 0
    assert outcome.error is not None
    assert outcome.error.code == code
    assert healthy.status == "completed"


async def test_control_requests_have_places_of_their_own() -> None:
    limits = ServerLimits(max_operations=1, max_control_operations=1)
    async with scripted_session(limits=limits) as (_, session):
        with anyio.fail_after(SECONDS):
            chat = session.chat(HELD, stream=True)
            await anext(chat)  # The server is full, and can be looked at all the same.
            watch = session.watch_queue()
            assert len((await anext(watch)).operations) == 1
            with pytest.raises(ProfileError) as refused:
                await session.queue()
            await watch.aclose()
            while True:  # Until the server has seen the cancel.
                try:
                    receipts = await session.abort_operations([str(chat.name)])
                    break
                except ProfileError:
                    continue
    assert refused.value.code == "adapter_operation_limit"
    assert receipts[0].accepted


async def test_a_control_request_that_waits_for_the_engine_is_cancelled_like_any_other() -> None:
    async with scripted_server(_Failing(None)) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit_document(session_id, build_control("queue.snapshot", {}))
        await peer.send(peer.wire.cancel(session_id, frame_id))
        _, cancelled = await peer.result(frame_id)
        frame_id = await peer.submit_document(session_id, build_control("queue.snapshot", {}))
        await peer.send(peer.wire.abort(session_id, frame_id))
        _, dropped = await peer.result(frame_id)
        assert served.server.admission.control_operations == 0
    assert cancelled == Cancelled(reason="peer_cancelled")
    assert isinstance(dropped, ResultDropped)
    assert dropped.reason is DropReason.PEER_CANCELLED


async def test_a_watch_does_not_hold_up_the_end_of_its_session_or_server() -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit_document(session_id, WATCH)
        chat = await peer.submit(session_id, script(text=["a", "b"], delay_ms=20))
        await peer.send(peer.wire.close_session(session_id, policy=InFlightPolicy.DRAIN))
        _, ended = await peer.result(frame_id)
        _, completed = await peer.result(chat)
        await peer.expect(SessionClosed)
        other = await peer.open_session()
        frame_id = await peer.submit_document(other, WATCH)
        with anyio.fail_after(SECONDS):
            while not served.server.admission.control_operations:
                await anyio.lowlevel.checkpoint()
            await served.server.drain(SECONDS * 10)
        _, at_shutdown = await peer.result(frame_id)
    assert ended == at_shutdown == Cancelled(reason="session_closing")
    assert isinstance(completed, Completed)


async def test_a_lost_connection_ends_its_watch() -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        await peer.submit_document(await peer.open(), WATCH)
        with anyio.fail_after(SECONDS):
            while not served.server.admission.control_operations:
                await anyio.lowlevel.checkpoint()
            await peer.carrier.aclose()
            while served.server.admission.control_operations or served.server.connections:
                await anyio.lowlevel.checkpoint()


async def test_an_unknown_operation_is_refused_with_the_ones_there_are() -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        frame_id = await peer.submit_document(await peer.open(), build_control("queue.empty", {}))
        _, refused = await peer.result(frame_id)
    assert isinstance(refused, Error)
    assert refused.error.code == "unsupported_operation"
    assert "queue.snapshot" in refused.error.message


class _Unwilling(ScriptedEngine):
    """An engine whose aborts fail or take for ever."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    async def abort_operations(self, ids: Any, *, by: Any) -> Any:
        if self._error is None:
            await anyio.sleep_forever()
        assert self._error is not None
        raise self._error


@pytest.mark.parametrize("error", [ZeroDivisionError("a fault"), None])
async def test_an_operation_ends_even_when_the_engine_does_not_confirm_its_abort(
    error: Exception | None,
) -> None:
    limits = ServerLimits(abort_seconds=0.05)
    async with scripted_session(_Unwilling(error), limits) as (_, session):
        with anyio.fail_after(SECONDS):
            chat = session.chat(HELD, stream=True)
            await anext(chat)
            (receipt,) = await session.abort_operations([str(chat.name)])
            assert (await chat.result()).status == "cancelled"
            assert (await session.queue()).operations == ()
    assert (receipt.state, receipt.accepted, receipt.authoritative) == ("unknown", False, False)


async def test_an_abort_goes_on_when_who_asked_for_it_is_gone() -> None:
    async with scripted_session(_Unwilling(None), ServerLimits(abort_seconds=0.1)) as (served, own):
        with anyio.fail_after(SECONDS):
            chat = own.chat(HELD, stream=True)
            await anext(chat)
            peer = RawPeer(served.dial())
            document = build_control("operation.abort", {"ids": [chat.name]})
            await peer.submit_document(await peer.open(), document)
            while not served.server.admission.control_operations:
                await anyio.lowlevel.checkpoint()
            await peer.carrier.aclose()
            assert (await chat.result()).reason == "abort_requested"


async def test_what_was_admitted_and_not_yet_given_to_the_engine_is_aborted_there() -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        chat, first = peer.wire.submit(
            session_id, build_envelope(HELD | {"stream": True}), operation_id=1
        )
        wanted = build_control("operation.abort", {"ids": [f"{session_id}.{chat}"]})
        abort, second = peer.wire.submit(session_id, wanted, operation_id=2)
        await peer.send(first + second)
        ends: dict[int, Any] = {}
        while ends.keys() != {chat, abort}:
            event = await peer.expect(ResultReceived)
            assert event.document is not None
            ends[event.frame_id] = decode_event(event.document)
    terminal, answer = ends[chat], ends[abort]
    assert terminal == Cancelled(reason="abort_requested")
    assert isinstance(answer, Completed)
    assert answer.body["receipts"][0]["accepted"] is True
