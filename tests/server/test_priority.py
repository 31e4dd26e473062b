"""Priorities: at submit, by PRIORITY_UPDATE, and where the engine knows none."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.engine.records import EngineDescription, Reprioritized
from nnrp_sched.engine.scripted import Policy, ScriptedEngine
from nnrp_sched.profile import RequestEnvelope, build_envelope
from nnrp_sched.profile.workflow import PRIORITY_RANGE
from nnrp_sched.server.priority import engine_priority, submit_priority
from nnrp_sched.wire import (
    ErrorCode,
    MessageType,
    Packet,
    RecoverableError,
    Scheduling,
    encode_packet,
)
from tests.support.raw_peer import RawPeer
from tests.support.serving import (
    SECONDS,
    InMemory,
    body,
    script,
    scripted_server,
    scripted_session,
)

pytestmark = pytest.mark.anyio

HELD: dict[str, Any] = script(text="x", hold=True)
DESCRIPTION = EngineDescription("any", ("m",), tool_calls=False, priority_policy="priority")


def update(session_id: int, frame_id: int, operation_id: int, **wish: int) -> bytes:
    """PRIORITY_UPDATE for a frame."""
    metadata = Scheduling(
        operation_id=operation_id,
        control_sequence=1,
        priority_class=wish.get("priority_class", 1),
        priority_delta=wish.get("priority_delta", 0),
        deadline_unix_ms=0,
        flags=0,
    )
    return encode_packet(
        Packet(MessageType.PRIORITY_UPDATE, metadata, session_id=session_id, frame_id=frame_id)
    )


async def until_rows(served: InMemory, count: int) -> list[tuple[str, int]]:
    """Ids and priorities once the engine has as many calls."""
    with anyio.fail_after(SECONDS):
        while True:
            rows = (await served.server.engine.queue()).operations
            if len(rows) == count:
                return [(row.id, row.priority) for row in rows]
            await anyio.lowlevel.checkpoint()


def envelope(chat: dict[str, Any] | None = None, **extensions: Any) -> RequestEnvelope:
    return RequestEnvelope("chat.completions.create", chat or {}, extensions=extensions)


@pytest.mark.parametrize(
    ("chat", "extensions", "session_class", "expected"),
    [
        ({}, {}, 0, -1),
        ({}, {}, 1, 0),
        ({}, {}, 2, 1),
        ({"priority": 9}, {}, 0, 9),
        ({"priority": 9}, {"priority": -4}, 0, -4),
        ({"priority": "high"}, {}, 0, 0),
        ({}, {"priority": None}, 2, 1),
    ],
)
def test_the_nearest_wish_counts_at_submit(
    chat: dict[str, Any], extensions: dict[str, Any], session_class: int, expected: int
) -> None:
    assert submit_priority(envelope(chat, **extensions), session_class, DESCRIPTION) == expected


@pytest.mark.parametrize("policy", ["fcfs", None])
def test_an_engine_without_priorities_gets_none(policy: str | None) -> None:
    description = EngineDescription("any", ("m",), tool_calls=False, priority_policy=policy)
    assert submit_priority(envelope(priority="ill-typed"), 0, description) == 0


@given(st.integers(0, 2), st.integers(-(2**15), 2**15 - 1))
def test_a_higher_class_or_delta_is_never_sooner(priority_class: int, delta: int) -> None:
    priority = engine_priority(priority_class, delta)
    assert PRIORITY_RANGE[0] <= priority <= PRIORITY_RANGE[1]
    assert priority <= engine_priority(priority_class, delta + 1)
    assert priority <= engine_priority(priority_class + 1, delta)


async def test_an_ill_typed_priority_or_workflow_is_refused() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            for extensions in (
                {"priority": "high"},
                {"priority": 1.5},
                {"workflow": "p"},
                {"workflow": {"agent": 7}},
                {"workflow": {"deadline_ms": -1}},
            ):
                outcome = await session.chat(body(), extensions=extensions).result()
                assert outcome.error is not None, extensions
                assert outcome.error.code == "invalid_nnrp_policy"
            unknown = {"workflow": {"colour": "red", "agent": None}}
            assert (await session.chat(body(), extensions=unknown).result()).status == "completed"


async def test_an_interactive_session_goes_before_a_background_one() -> None:
    async with scripted_server(ScriptedEngine(slots=1)) as served:
        peer = RawPeer(served.dial())
        await peer.submit(await peer.open(), HELD)
        await until_rows(served, 1)
        background = await peer.open_session(priority=2)
        interactive = await peer.open_session(priority=0)
        late = await peer.submit(background, body())
        await until_rows(served, 2)
        soon = await peer.submit(interactive, body())
        rows = await until_rows(served, 3)
    assert rows[1:] == [(f"{interactive}.{soon}", -1), (f"{background}.{late}", 1)]


async def test_priority_update_moves_a_waiting_operation_and_is_not_answered() -> None:
    async with scripted_server(ScriptedEngine(slots=1)) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        held = await peer.submit(session_id, HELD)
        await until_rows(served, 1)
        first = await peer.submit(session_id, body())
        await until_rows(served, 2)
        second = await peer.submit(session_id, body())
        await until_rows(served, 3)
        wish = {"priority_class": 0, "priority_delta": -5}
        await peer.send(update(session_id, second, 1003, **wish))
        names = [f"{session_id}.{frame}" for frame in (held, second, first)]
        with anyio.fail_after(SECONDS):
            while await until_rows(served, 3) != list(zip(names, (0, -6, 0), strict=True)):
                await anyio.lowlevel.checkpoint()
        await peer.send(update(session_id, held, 1001, **wish))  # Runs: too late, and no fault.
        await peer.send(peer.wire.cancel(session_id, held))
        for frame in (held, second, first):
            await peer.until_terminal(frame)
        kinds = {packet.message_type for packet in peer.packets}
        assert MessageType.ERROR_RECOVERABLE not in kinds


async def test_a_priority_update_in_the_same_bytes_as_its_submit_counts() -> None:
    async with scripted_server(ScriptedEngine(slots=1)) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        await peer.submit(session_id, HELD)
        await until_rows(served, 1)
        frame, submit = peer.wire.submit(session_id, build_envelope(body()), operation_id=7)
        await peer.send(submit + update(session_id, frame, 7, priority_delta=4))
        assert (await until_rows(served, 2))[1] == (f"{session_id}.{frame}", 4)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
async def test_the_capability_is_declared_only_where_it_works(policy: Policy) -> None:
    async with scripted_server(ScriptedEngine(policy=policy, slots=1)) as served:
        async with served.connect() as connection, connection.session() as session:
            document = await session.capabilities()
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, HELD)
        await until_rows(served, 1)
        await peer.send(update(session_id, frame_id, 1001))
        await peer.send(peer.wire.cancel(session_id, frame_id))
        await peer.until_terminal(frame_id)
        refused = [p for p in peer.packets if p.message_type is MessageType.ERROR_RECOVERABLE]
    declared = {each["name"] for each in document["extensions"]}
    assert {"nnrp-sched-control/1", "nnrp.workflow"} <= declared
    assert ("nnrp.priority" in declared) is (policy == "priority")
    said = [bytes(packet.body) for packet in refused]
    assert said == ([] if policy == "priority" else [b"priority_update_unsupported: policy_fcfs"])


class _Stubborn(ScriptedEngine):
    """Says it orders by priority, and then will not; counts how often it was asked."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.go = anyio.Event()
        self._error = error

    async def reprioritize(self, request_id: str, priority: int) -> Reprioritized:
        self.asked.append(priority)
        await self.go.wait()
        if self._error is not None:
            raise self._error
        return Reprioritized(request_id, False, "unsupported")


@pytest.mark.parametrize(
    ("error", "reason"), [(None, "unsupported"), (ZeroDivisionError(), "failed")]
)
async def test_an_engine_that_refuses_is_told_to_the_peer_and_the_operation_goes_on(
    error: Exception | None, reason: str
) -> None:
    engine = _Stubborn(error)
    engine.go.set()
    async with scripted_server(engine) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, HELD)
        await until_rows(served, 1)
        await peer.send(update(session_id, frame_id, 1001))
        with anyio.fail_after(SECONDS):
            while not any(p.message_type is MessageType.ERROR_RECOVERABLE for p in peer.packets):
                await peer.next_event()
        (refused,) = [p for p in peer.packets if p.message_type is MessageType.ERROR_RECOVERABLE]
        assert bytes(refused.body) == f"priority_update_unsupported: {reason}".encode()
        assert isinstance(refused.metadata, RecoverableError)
        assert refused.metadata.code == ErrorCode.UNSUPPORTED_CAPABILITY
        await peer.send(peer.wire.cancel(session_id, frame_id))
        await peer.until_terminal(frame_id)


async def test_of_a_thousand_updates_the_engine_is_asked_for_the_first_and_the_last() -> None:
    engine = _Stubborn()
    async with scripted_server(engine) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, HELD)
        await until_rows(served, 1)
        await peer.send(update(session_id, frame_id, 1001, priority_delta=1))
        with anyio.fail_after(SECONDS):
            while not engine.asked:
                await anyio.lowlevel.checkpoint()
            for delta in range(2, 1001):
                await peer.send(update(session_id, frame_id, 1001, priority_delta=delta))
            await peer.open_session()  # All of them have been read.
            engine.go.set()
            while len(engine.asked) < 2:
                await anyio.lowlevel.checkpoint()
        await peer.send(peer.wire.cancel(session_id, frame_id))
        await peer.until_terminal(frame_id)
    assert engine.asked == [1, 1000]
