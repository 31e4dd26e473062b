"""How connections, sessions and the server end, and what is left behind: nothing.

Over each kind of carrier, because ends are what they differ in.
"""

from pathlib import Path

import anyio
import pytest

from nnrp_sched.errors import ConnectionLost, SessionRejected
from nnrp_sched.profile import Completed, build_envelope
from nnrp_sched.server import ServerLimits
from nnrp_sched.wire import (
    ConnectionCloseReceived,
    DropReason,
    InFlightPolicy,
    MessageType,
    ResultDropped,
    SessionClosed,
    SessionFailed,
)
from tests.support.carriers import KINDS, Place
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


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


async def until_running(served: InMemory, operations: int) -> None:
    """Wait until the server runs so many operations."""
    with anyio.fail_after(SECONDS):
        while len(served.server.admission) < operations:
            await anyio.lowlevel.checkpoint()


async def until_idle(served: InMemory) -> None:
    """Wait until the server runs no operation."""
    with anyio.fail_after(SECONDS):
        while len(served.server.admission):
            await anyio.lowlevel.checkpoint()


async def test_the_end_of_a_connection_aborts_what_ran_on_it(place: Place) -> None:
    async with scripted_server(place=place) as served:
        peer = RawPeer(await served.carrier())
        session_id = await peer.open()
        for _ in range(5):
            await peer.submit(session_id, script(text="x", hold=True) | {"stream": True})
        await peer.submit(session_id, script(text="x", hold=True))
        await until_running(served, 6)
        await peer.carrier.aclose()
        await until_idle(served)
        with anyio.fail_after(SECONDS):
            while served.server.connections:
                await anyio.lowlevel.checkpoint()


async def test_a_silent_connection_is_closed_after_the_hello_time(place: Place) -> None:
    # Long enough for a handshake of the carrier, which has as much time.
    async with scripted_server(place=place, limits=ServerLimits(hello_seconds=1)) as served:
        peer = RawPeer(await served.carrier())
        packets = await peer.read_to_the_end()
    # A QUIC client that said nothing has opened no stream to be told anything on.
    expected = [] if place.kind == "quic" else [MessageType.CLOSE]
    assert [packet.message_type for packet in packets] == expected


async def test_a_connection_that_said_hello_may_be_silent_afterwards(place: Place) -> None:
    async with scripted_server(place=place, limits=ServerLimits(hello_seconds=1.5)) as served:
        peer = RawPeer(await served.carrier())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, script(text="x", delay_ms=1600))
        _, terminal = await peer.result(frame_id)
    assert isinstance(terminal, Completed)


async def test_closing_a_session_with_drain_waits_for_its_operations(place: Place) -> None:
    async with scripted_server(place=place) as served:
        peer = RawPeer(await served.carrier())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, script(text=["a", "b"], delay_ms=20))
        await peer.send(peer.wire.close_session(session_id, policy=InFlightPolicy.DRAIN))
        _, terminal = await peer.result(frame_id)
        assert isinstance(terminal, Completed)
        await peer.expect(SessionClosed)


async def test_closing_a_session_with_abort_ends_its_operations_without_a_message(
    place: Place,
) -> None:
    async with scripted_server(place=place) as served:
        peer = RawPeer(await served.carrier())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, script(hold=True) | {"stream": True})
        await peer.send(peer.wire.close_session(session_id, policy=InFlightPolicy.ABORT))
        await peer.expect(SessionClosed)
        assert peer.terminals(frame_id) == []
        await until_idle(served)


async def test_an_operation_that_outlives_the_drain_of_its_session_is_dropped_with_the_reason(
    place: Place,
) -> None:
    async with scripted_server(place=place, limits=ServerLimits(drain_seconds=0.05)) as served:
        peer = RawPeer(await served.carrier())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, script(hold=True) | {"stream": True})
        await peer.send(peer.wire.close_session(session_id, policy=InFlightPolicy.DRAIN))
        _, terminal = await peer.result(frame_id)
        assert isinstance(terminal, ResultDropped)
        assert terminal.reason is DropReason.DEADLINE_EXPIRED
        await peer.expect(SessionClosed)


async def test_draining_lets_operations_finish_and_starts_no_new_ones(place: Place) -> None:
    async with scripted_server(place=place) as served:
        peer = RawPeer(await served.carrier())
        session_id = await peer.open()
        running = await peer.submit(session_id, script(text=["a", "b", "c"], delay_ms=40))
        await until_running(served, 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.server.drain)
            with anyio.fail_after(SECONDS):
                while not served.server.admission.draining:
                    await anyio.lowlevel.checkpoint()
            late = await peer.submit(session_id, body())
            _, refused = await peer.result(late)
            _, terminal = await peer.result(running)
            await peer.expect(ConnectionCloseReceived)
            assert isinstance(terminal, Completed)
            assert isinstance(refused, ResultDropped)
            assert refused.reason is DropReason.TRANSPORT_CLOSED


async def test_a_drain_without_time_drops_what_runs_and_says_so(place: Place) -> None:
    async with scripted_server(place=place) as served:
        peer = RawPeer(await served.carrier())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, script(text="x", hold=True) | {"stream": True})
        await peer.send(peer.wire.trace_context(session_id, 0, 1, 1, 0, 0))
        await until_running(served, 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.server.drain, 0)
            _, terminal = await peer.result(frame_id)
            await peer.expect(ConnectionCloseReceived)
            assert isinstance(terminal, ResultDropped)
            assert terminal.diagnostic == "server_shutdown"


async def test_a_draining_server_refuses_sessions(place: Place) -> None:
    async with scripted_server(place=place) as served, served.connect() as connection:
        served.server.admission.draining = True
        with pytest.raises(SessionRejected, match="shuts down"):
            async with connection.session():
                pass


async def test_more_connections_than_the_limit_are_closed_at_once(place: Place) -> None:
    async with scripted_server(place=place, limits=ServerLimits(max_connections=1)) as served:
        first = RawPeer(await served.carrier())
        session_id = await first.open()
        second = RawPeer(await served.carrier())
        assert await second.read_to_the_end() == []
        frame_id = await first.submit(session_id, body())
        _, terminal = await first.result(frame_id)
    assert isinstance(terminal, Completed)


async def test_a_peer_that_stops_reading_holds_only_a_bounded_number_of_bytes(place: Place) -> None:
    limit = 64 * 1024
    async with scripted_server(place=place, limits=ServerLimits(send_queue_bytes=limit)) as served:
        peer = RawPeer(await served.carrier())
        session_id = await peer.open()
        endless = script(text="y" * 1000, repeat=100_000) | {"stream": True}
        for _ in range(4):
            await peer.submit(session_id, endless)
        connection = next(iter(served.server.connections))
        async with served.connect() as other, other.session() as session:
            with anyio.fail_after(SECONDS):
                # While that peer does not read, a neighbour is served as ever.
                for _ in range(200):
                    assert (await session.chat(body()).result()).status == "completed"
        assert connection.waiting_bytes < limit + 4 * 2000
        await peer.carrier.aclose()
        await until_idle(served)


async def test_a_client_is_told_when_the_server_goes_away(place: Place) -> None:
    async with scripted_session(place=place) as (served, session):
        chat = session.chat(script(text="x", hold=True), stream=True)
        await anext(chat)
        with anyio.fail_after(SECONDS):
            await served.server.drain(0)
            outcome = await chat.result()
            assert outcome.status == "dropped"
            with pytest.raises(ConnectionLost):
                await session.chat(body()).result()


async def test_a_failed_session_leaves_nothing_in_its_connection(place: Place) -> None:
    async with scripted_server(place=place) as served:
        peer = RawPeer(await served.carrier())
        keeper = await peer.open()
        connection = next(iter(served.server.connections))
        for _ in range(5):
            session_id = await peer.open_session()
            document = build_envelope(script(hold=True) | {"stream": True})
            _, submit = peer.wire.submit(session_id, document, operation_id=session_id)
            await peer.send(submit + submit)
            await peer.expect(SessionFailed)
        await until_idle(served)
        assert connection.session_ids == (keeper,)


async def test_closing_a_session_that_fails_meanwhile_harms_nothing(place: Place) -> None:
    async with scripted_server(place=place) as served:
        peer = RawPeer(await served.carrier())
        await peer.open()
        session_id = await peer.open_session()
        document = build_envelope(script(hold=True) | {"stream": True})
        _, submit = peer.wire.submit(session_id, document, operation_id=9)
        close = peer.wire.close_session(session_id, policy=InFlightPolicy.DRAIN)
        await peer.send(submit + close + submit)
        await until_idle(served)
        again = await peer.open_session()
        frame_id = await peer.submit(again, body())
        _, terminal = await peer.result(frame_id)
        assert isinstance(terminal, Completed)
