"""Credit for new operations, and what a busy server says (wire digest 3.8; profile 10)."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import ConnectionLost
from nnrp_sched.profile import Error
from nnrp_sched.server import ServerLimits
from nnrp_sched.server.load import Load
from nnrp_sched.wire import (
    CapabilitiesAgreed,
    CapabilityToken,
    MessageType,
    Packet,
)
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, body, script, scripted_server

pytestmark = pytest.mark.anyio

HELD: dict[str, Any] = script(text="x", hold=True) | {"stream": True}
CREDIT = [CapabilityToken.CREDIT_BACKPRESSURE]
_CREDIT_KINDS = {MessageType.CREDIT_UPDATE, MessageType.BACKPRESSURE, MessageType.FLOW_UPDATE}


def words(peer: RawPeer) -> list[tuple[str, int]]:
    """Each word on credit: its type, and the window it leaves."""
    return [
        (packet.message_type.name, getattr(packet.metadata, "credit_window", -1))
        for packet in peer.packets
        if packet.message_type in _CREDIT_KINDS
    ]


def about(peer: RawPeer, kind: MessageType) -> list[Packet]:
    return [packet for packet in peer.packets if packet.message_type is kind]


async def until_words(peer: RawPeer, count: int) -> list[tuple[str, int]]:
    with anyio.fail_after(SECONDS):
        while len(words(peer)) < count:
            await peer.next_event()
    return words(peer)


async def test_a_session_of_one_place_is_told_when_it_is_taken_and_when_it_is_free() -> None:
    async with scripted_server(limits=ServerLimits(max_in_flight=1)) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        await peer.send(peer.wire.negotiate(session_id, CREDIT))
        await peer.expect(CapabilitiesAgreed)
        frame_id = await peer.submit(session_id, HELD)
        await until_words(peer, 2)
        await peer.send(peer.wire.cancel(session_id, frame_id))
        told = await until_words(peer, 3)
        retry = about(peer, MessageType.BACKPRESSURE)[0].metadata
    assert told == [("CREDIT_UPDATE", 1), ("BACKPRESSURE", 0), ("CREDIT_UPDATE", 1)]
    assert getattr(retry, "retry_after_ms", 0) > 0


async def test_nothing_is_said_of_credit_without_a_negotiation() -> None:
    async with scripted_server(limits=ServerLimits(max_in_flight=1)) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        for _ in range(3):
            await peer.result(await peer.submit(session_id, body()))
        assert words(peer) == []


async def test_a_full_server_tells_every_session_that_listens() -> None:
    async with scripted_server(limits=ServerLimits(max_operations=1)) as served:
        busy, idle = RawPeer(served.dial()), RawPeer(served.dial())
        session_id = await busy.open()
        other = await idle.open()
        await idle.send(idle.wire.negotiate(other, CREDIT))
        await idle.expect(CapabilitiesAgreed)
        frame_id = await busy.submit(session_id, HELD)
        told = await until_words(idle, 2)
        assert told[1] == ("BACKPRESSURE", 0)
        await busy.send(busy.wire.cancel(session_id, frame_id))
        told = await until_words(idle, 3)
        assert told[2][0] == "CREDIT_UPDATE"
        assert told[2][1] > 0


async def test_words_on_credit_do_not_grow_with_the_operations() -> None:
    """A full session says so once, and that it has room once an eighth of it is free."""
    async with scripted_server(limits=ServerLimits(max_in_flight=16)) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        await peer.send(peer.wire.negotiate(session_id, CREDIT))
        frames = [await peer.submit(session_id, HELD) for _ in range(16)]
        await until_words(peer, 2)
        for frame_id in frames:
            await peer.send(peer.wire.cancel(session_id, frame_id))
            await peer.until_terminal(frame_id)
        for _ in range(20):
            await peer.result(await peer.submit(session_id, body()))
        assert words(peer) == [
            ("CREDIT_UPDATE", 16),
            ("BACKPRESSURE", 0),
            ("CREDIT_UPDATE", 2),
        ]


async def test_a_session_that_was_told_of_little_room_is_told_once_there_is_more() -> None:
    """It began when others had almost all of the server; it must not stay at that for ever."""
    async with scripted_server(limits=ServerLimits(max_operations=9)) as served:
        busy, late = RawPeer(served.dial()), RawPeer(served.dial())
        session_id = await busy.open()
        frames = [await busy.submit(session_id, HELD) for _ in range(8)]
        with anyio.fail_after(SECONDS):
            while len(served.server.admission) < 8:
                await anyio.lowlevel.checkpoint()
        other = await late.open()
        await late.send(late.wire.negotiate(other, CREDIT))
        assert await until_words(late, 1) == [("CREDIT_UPDATE", 1)]
        for frame_id in frames:
            await busy.send(busy.wire.cancel(session_id, frame_id))
            await busy.until_terminal(frame_id)
        await late.submit(other, HELD)
        assert await until_words(late, 2) == [("CREDIT_UPDATE", 1), ("CREDIT_UPDATE", 8)]


async def test_a_server_that_goes_down_tells_that_nothing_starts_any_more() -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        await peer.send(peer.wire.negotiate(session_id, CREDIT))
        await peer.expect(CapabilitiesAgreed)
        frame_id = await peer.submit(session_id, script(text=["a", "b"], delay_ms=20))
        with anyio.fail_after(SECONDS):
            while not len(served.server.admission):
                await anyio.lowlevel.checkpoint()
            await served.server.drain(SECONDS)
        await peer.read_to_the_end()
        (pause,) = about(peer, MessageType.FLOW_UPDATE)
        assert getattr(pause.metadata, "flags", 0) & 8
        assert b"response.completed" in peer.terminals(frame_id)[0].body


# --- busy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("agreed", [True, False])
async def test_a_refusal_for_lack_of_room_comes_with_a_hint_before_its_terminal(
    agreed: bool,
) -> None:
    async with scripted_server(limits=ServerLimits(max_operations=1)) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        if agreed:
            await peer.send(peer.wire.negotiate(session_id, [CapabilityToken.RECOVERABLE_ERROR]))
            await peer.expect(CapabilitiesAgreed)
        running = await peer.submit(session_id, HELD)
        refused = await peer.submit(session_id, body())
        _, terminal = await peer.result(refused)
        kinds = [packet.message_type for packet in peer.packets if packet.frame_id in (0, refused)]
        await peer.send(peer.wire.cancel(session_id, running))
        await peer.result(running)
    assert isinstance(terminal, Error)
    assert terminal.error.code == "adapter_operation_limit"
    said = kinds[kinds.index(MessageType.RESULT_HINT) :]
    advice = [MessageType.ERROR_RECOVERABLE, MessageType.RETRY_AFTER] if agreed else []
    assert said == [MessageType.RESULT_HINT, *advice, MessageType.RESULT_PUSH]


async def test_an_overloaded_engine_is_told_of_as_a_full_server_is() -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, script(fail_status=503))
        _, terminal = await peer.result(frame_id)
        assert isinstance(terminal, Error)
        assert terminal.error.code == "backend_overload"
        assert len(about(peer, MessageType.RESULT_HINT)) == 1
        again = await peer.submit(session_id, script(fail_status=500))
        await peer.result(again)
        assert len(about(peer, MessageType.RESULT_HINT)) == 1


def test_the_time_to_wait_follows_the_ends_of_operations() -> None:
    now = [0.0]
    load = Load(lambda: now[0])
    assert load.retry_after_ms == 1000
    for _ in range(30):
        now[0] += 0.2
        load.released()
    assert 190 <= load.retry_after_ms <= 210
    now[0] += 5
    assert load.retry_after_ms == 5000
    now[0] += 500
    assert load.retry_after_ms == 30_000
    for _ in range(100):
        load.released()
    assert load.retry_after_ms == 50


# --- the client -----------------------------------------------------------------------------------


async def test_a_client_waits_for_room_where_it_negotiated_and_is_refused_where_not() -> None:
    limits = ServerLimits(max_operations=1)
    async with (
        scripted_server(ScriptedEngine(), limits) as served,
        served.connect() as connection,
        connection.session() as polite,
        connection.session() as blunt,
    ):
        with anyio.fail_after(SECONDS):
            await polite.negotiate(CREDIT)
            held = blunt.chat(script(text="x", hold=True), stream=True)
            await anext(held)
            refused = await blunt.chat(body()).result()
            assert refused.error is not None
            assert refused.error.code == "adapter_operation_limit"
            assert refused.retry_after_ms
            outcomes: list[str] = []

            async def ask() -> None:
                outcomes.append((await polite.chat(body()).result()).status)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                assert outcomes == []
                assert polite.in_flight == 0
                await held.cancel()
            assert outcomes == ["completed"]


async def test_a_client_that_waits_for_a_server_going_down_is_told_when_it_is_gone() -> None:
    async with (
        scripted_server() as served,
        served.connect() as connection,
        connection.session() as session,
    ):
        with anyio.fail_after(SECONDS):
            await session.negotiate(CREDIT)
            running = session.chat(script(text="x", hold=True), stream=True)
            await anext(running)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(served.server.drain, 0.2)
                while not session.places.paused:
                    await anyio.lowlevel.checkpoint()
                with pytest.raises(ConnectionLost):
                    await session.chat(body()).result()
