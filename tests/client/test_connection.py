"""A client against servers that are not ours: tolerant of what is legal, clear about the rest."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from nnrp_sched.client import Chat, Connection, Outcome, Session
from nnrp_sched.client.connect import over_carrier
from nnrp_sched.errors import (
    ConnectionLost,
    PeerUnreachable,
    ProfileStreamError,
    ReaderTooSlow,
    SessionRejected,
)
from nnrp_sched.profile import Completed, encode_event
from nnrp_sched.transport import Carrier, memory_pair
from nnrp_sched.wire import (
    CancelReceived,
    ControlReceived,
    DropReason,
    ErrorCode,
    ErrorScope,
    HelloReceived,
    MessageType,
    Packet,
    SessionCloseReceived,
    SessionErrorCode,
    SessionOpenReceived,
    encode_packet,
)
from nnrp_sched.wire.notices import error_packet
from nnrp_sched.wire.session_messages import TransportProbe, TransportProbeAck
from tests.support.raw_server import RawServer
from tests.support.serving import SECONDS, body

pytestmark = pytest.mark.anyio

DELTA = b'{"type":"response.output_text.delta","index":0,"delta":"hi"}'


@asynccontextmanager
async def against_raw_server() -> AsyncGenerator[tuple[Session, RawServer], None]:
    """A session of our client on a server that the test plays."""
    ours, theirs = memory_pair()
    server = RawServer(theirs)
    sessions: list[Session] = []
    closing = anyio.Event()

    async def client() -> None:
        async with over_carrier(ours) as connection, connection.session() as session:
            sessions.append(session)
            opened.set()
            await closing.wait()

    opened = anyio.Event()
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client)
            await server.accept_session()
            await opened.wait()
            yield sessions[0], server
            await theirs.aclose()
            closing.set()


@asynccontextmanager
async def over_greeted(ours: Carrier, server: RawServer) -> AsyncGenerator[Connection, None]:
    """A connection of our client whose hello the server has answered."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.expect, HelloReceived)
        async with over_carrier(ours) as connection:
            yield connection


async def finished(chat: Chat) -> Outcome:
    """Wait for the outcome that another task reads."""
    while chat.outcome is None:
        await anyio.lowlevel.checkpoint()
    return chat.outcome


async def test_an_empty_success_completes_without_a_body() -> None:
    async with against_raw_server() as (session, server), anyio.create_task_group() as tasks:
        chat = session.chat(body(), stream=True)
        tasks.start_soon(chat.result)
        submit = await server.submitted()
        await server.partial(submit, DELTA)
        await server.push(submit, None)
        outcome = await finished(chat)
        assert outcome.status == "completed"
        assert outcome.text == "hi"
        assert outcome.body is None


@pytest.mark.parametrize(
    ("reason", "status"),
    [(DropReason.PEER_CANCELLED, "cancelled"), (DropReason.SUPERSEDED, "dropped")],
)
async def test_a_drop_reason_is_an_outcome(reason: DropReason, status: str) -> None:
    async with against_raw_server() as (session, server), anyio.create_task_group() as tasks:
        chat = session.chat(body(), stream=True)
        tasks.start_soon(chat.result)
        submit = await server.submitted()
        await server.send(server.wire.drop_result(submit.session_id, submit.frame_id, reason))
        outcome = await finished(chat)
        assert outcome.status == status


BAD_EVENTS = {
    "bad JSON": b'{"type":',
    "bad UTF-8": b'{"type":"response.output_text.delta","index":0,"delta":"\xff"}',
    "a negative index": b'{"type":"response.output_text.delta","index":-1,"delta":"x"}',
    "a terminal as a partial": encode_event(Completed(body={})),
    "a tool call that never started": b'{"type":"response.tool_call.delta","index":0,'
    b'"item_id":"i","call_id":"c","arguments_delta":"{}"}',
}


@pytest.mark.parametrize("kind", BAD_EVENTS)
async def test_an_event_outside_the_profile_is_an_error_and_cancels_the_operation(
    kind: str,
) -> None:
    async with against_raw_server() as (session, server):
        chat = session.chat(body(), stream=True)
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                with pytest.raises(ProfileStreamError):
                    await chat.result()

            tasks.start_soon(read)
            submit = await server.submitted()
            await server.partial(submit, BAD_EVENTS[kind])
            cancelled = await server.expect(CancelReceived)
            assert cancelled.frame_id == submit.frame_id
        with pytest.raises(ProfileStreamError):  # The failure stays.
            await anext(chat)


async def test_unknown_events_and_unsolicited_advice_are_taken_as_they_come() -> None:
    async with against_raw_server() as (session, server), anyio.create_task_group() as tasks:
        chat = session.chat(body(), stream=True)
        tasks.start_soon(chat.result)
        submit = await server.submitted()
        await server.partial(submit, b'{"type":"response.weather","sky":"blue"}')
        await server.send(encode_packet(Packet(MessageType.PING, session_id=submit.session_id)))
        await server.push(submit, encode_event(Completed(body={"choices": []})))
        outcome = await finished(chat)
        assert outcome.status == "completed"


async def test_a_connection_that_breaks_ends_every_chat_with_connection_lost() -> None:
    lost: list[int] = []
    async with against_raw_server() as (session, server), anyio.create_task_group() as tasks:

        async def read(number: int) -> None:
            with pytest.raises(ConnectionLost):
                await session.chat(body(), stream=True).result()
            lost.append(number)

        for number in range(3):
            tasks.start_soon(read, number)
        for _ in range(3):
            await server.submitted()
        await server.carrier.aclose()
    assert sorted(lost) == [0, 1, 2]


async def test_garbage_from_the_server_ends_the_connection_with_the_fault_named() -> None:
    async with against_raw_server() as (session, server), anyio.create_task_group() as tasks:

        async def read() -> None:
            with pytest.raises(ConnectionLost, match="does not start a packet"):
                await session.chat(body()).result()

        tasks.start_soon(read)
        await server.submitted()
        await server.send(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 40)


async def test_a_session_whose_opener_gave_up_is_closed_again() -> None:
    ours, theirs = memory_pair()
    server = RawServer(theirs)
    with anyio.fail_after(SECONDS):
        async with over_greeted(ours, server) as connection:
            with pytest.raises(ConnectionLost, match="did not answer"):
                async with connection.session(seconds=0):
                    pass
            await server.accept_session()
            closed = await server.expect(SessionCloseReceived)
            assert closed.session_id == 1
            await theirs.aclose()


async def test_a_session_that_fails_in_the_bytes_that_open_it_is_lost() -> None:
    ours, theirs = memory_pair()
    server = RawServer(theirs)

    async def open_and_fail() -> None:
        request = await server.expect(SessionOpenReceived)
        opened = server.wire.accept_session(request, 1, max_in_flight=1, operation_credit=1)
        failed = error_packet(
            ErrorCode.INTERNAL, "out of order", ErrorScope.SESSION, fatal=True, session_id=1
        )
        await server.send(opened + encode_packet(failed))

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks, over_greeted(ours, server) as connection:
            tasks.start_soon(open_and_fail)
            with pytest.raises(ConnectionLost, match="out of order"):
                async with connection.session() as session:
                    await session.chat(body()).result()
            await theirs.aclose()


async def test_a_chat_that_gets_its_place_while_its_session_closes_is_lost() -> None:
    ours, theirs = memory_pair()
    server = RawServer(theirs)
    ends: list[str] = []

    async def read(chat: Chat) -> None:
        try:
            ends.append((await chat.result()).status)
        except ConnectionLost:
            ends.append("lost")

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks, over_greeted(ours, server) as connection:

            async def serve() -> None:
                await server.accept_session(max_in_flight=1)
                submit = await server.submitted()
                await server.expect(SessionCloseReceived)
                await server.push(submit, None)
                await anyio.wait_all_tasks_blocked()
                await server.send(server.wire.acknowledge_session_close(1))

            tasks.start_soon(serve)
            async with connection.session() as session:
                for _ in range(2):
                    tasks.start_soon(read, session.chat(body()))
                await anyio.wait_all_tasks_blocked()
            await theirs.aclose()
    assert sorted(ends) == ["completed", "lost"]


async def test_cancelling_the_scope_around_a_connection_waits_for_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nnrp_sched.client.connection._CLOSE_SECONDS", 1000)
    ours, theirs = memory_pair()
    server = RawServer(theirs)

    async def client() -> None:
        async with over_carrier(ours) as connection, connection.session() as session:
            await session.chat(body()).result()

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client)
            await server.accept_session()
            await server.submitted()
            tasks.cancel_scope.cancel()
    await theirs.aclose()


async def test_a_refused_session_says_why() -> None:
    ours, theirs = memory_pair()
    server = RawServer(theirs)

    async def refuse() -> None:
        request = await server.expect(SessionOpenReceived)
        await server.send(
            server.wire.reject_session(request, SessionErrorCode.LIMIT_REACHED, "enough")
        )

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refuse)
            async with over_carrier(ours) as connection:
                with pytest.raises(SessionRejected, match="enough") as caught:
                    async with connection.session():
                        pass
                assert caught.value.code == SessionErrorCode.LIMIT_REACHED
    await theirs.aclose()


async def test_a_peer_that_never_answers_the_hello_is_unreachable() -> None:
    ours, theirs = memory_pair()
    with pytest.raises(PeerUnreachable, match="hello"), anyio.fail_after(SECONDS):
        async with over_carrier(ours, seconds=0.05):
            pass
    await theirs.aclose()


async def test_a_terminal_in_the_bytes_that_overflow_a_slow_reader_ends_only_that_chat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nnrp_sched.client.session._MAX_BUFFERED_EVENTS", 1)
    async with against_raw_server() as (session, server), anyio.create_task_group() as tasks:
        slow = session.chat(body(), stream=True)
        tasks.start_soon(anext, slow)
        submit = await server.submitted()
        wire, ids = server.wire, (submit.session_id, submit.frame_id)
        partials = b"".join(wire.partial_result(*ids, DELTA) for _ in range(3))
        await server.send(partials + wire.push_result(*ids, None))
        with pytest.raises(ReaderTooSlow):
            await slow.result()
        after = session.chat(body())
        tasks.start_soon(after.result)
        await server.push(await server.submitted(), None)
        assert (await finished(after)).status == "completed"


async def test_the_server_s_second_terminal_is_ignored() -> None:
    async with against_raw_server() as (session, server), anyio.create_task_group() as tasks:
        chat = session.chat(body(), stream=True)
        tasks.start_soon(chat.result)
        submit = await server.submitted()
        result = server.wire.push_result(
            submit.session_id,
            submit.frame_id,
            encode_event(Completed(body={})),
        )
        await server.send(result + result)
        await finished(chat)
        second = session.chat(body(), stream=True)
        tasks.start_soon(second.result)
        again = await server.submitted()
        await server.push(again, None)
        assert (await finished(second)).status == "completed"


async def test_an_error_inside_the_block_leaves_as_it_is() -> None:
    ours, theirs = memory_pair()
    server = RawServer(theirs)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.accept_session)
            with pytest.raises(LookupError):
                async with over_carrier(ours) as connection, connection.session():
                    await theirs.aclose()
                    raise LookupError


async def test_a_servers_probe_is_answered_with_the_clients_time() -> None:
    before = time.time_ns() // 1000
    async with against_raw_server() as (_, server):
        probe = TransportProbe(probe_id=9, payload_bytes=0, client_ts_us=0)
        await server.send(encode_packet(Packet(MessageType.TRANSPORT_PROBE, probe)))
        answer = (await server.expect(ControlReceived)).packet.metadata
    assert isinstance(answer, TransportProbeAck)
    assert answer.probe_id == 9
    assert before <= answer.server_ts_us <= time.time_ns() // 1000
