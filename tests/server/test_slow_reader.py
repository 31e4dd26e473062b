"""A peer that reads too slowly loses its own operations, and costs its neighbours nothing."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nnrp_sched.client import connect
from nnrp_sched.engine.records import AbortReceipt
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.profile import build_control
from nnrp_sched.server import Server, ServerLimits, serve
from nnrp_sched.server.send_queue import OperationQueue, Sender, SendQueues
from nnrp_sched.transport import Outbox, memory_pair, parse_endpoint
from nnrp_sched.transport.socket_carrier import SocketCarrier
from nnrp_sched.wire import DropReason, MessageType
from tests.support.carriers import KINDS, Place
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, body, script, scripted_server

pytestmark = pytest.mark.anyio

FLOOD: dict[str, Any] = script(text="y" * 2000, repeat=1_000_000) | {"stream": True}
"""More than any buffer between two sockets holds."""
LIMITS = ServerLimits(
    send_queue_bytes=32 * 1024, operation_queue_bytes=32 * 1024, slow_reader_seconds=0.3
)


class Served:
    """A server on a real socket, its engine and the records of its operations."""

    def __init__(self, server: Server, engine: ScriptedEngine) -> None:
        self.server = server
        self.engine = engine
        self.records: list[OperationRecord] = []

    async def dial(self) -> RawPeer:
        """A peer whose socket takes little before it is read."""
        endpoint = self.server.endpoints[0]
        raw = socket.create_connection((endpoint.host, endpoint.port))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        _, carrier = await loop.create_connection(lambda: SocketCarrier("tcp"), sock=raw)
        return RawPeer(carrier)

    @property
    def ended(self) -> list[OperationRecord]:
        """The operations that ended otherwise than by themselves."""
        return [record for record in self.records if record.outcome != "completed"]

    async def until(self, count: int) -> list[OperationRecord]:
        """Wait for so many of them."""
        with anyio.fail_after(SECONDS):
            while len(self.ended) < count:
                await anyio.lowlevel.checkpoint()
        return self.ended


@asynccontextmanager
async def served(limits: ServerLimits = LIMITS) -> AsyncGenerator[Served, None]:
    engine = ScriptedEngine()
    records: list[OperationRecord] = []
    endpoint = parse_endpoint("nnrp://127.0.0.1:0")
    async with serve(engine, [endpoint], limits, observers=[records.append]) as server:
        it = Served(server, engine)
        it.records = records
        yield it


async def test_a_reader_that_stops_loses_its_operations_and_no_neighbour_is_hurt() -> None:
    async with served() as it:
        peer = await it.dial()
        session_id = await peer.open()
        for _ in range(3):
            await peer.submit(session_id, FLOOD)
        healthy: list[str] = []
        async with (
            connect(str(it.server.endpoints[0])) as connection,
            connection.session() as session,
        ):
            with anyio.fail_after(SECONDS):
                while len(it.ended) < 3:
                    outcome = await session.chat(body("all is well"), stream=True).result()
                    healthy.append(outcome.text)
        lost = it.ended
        assert (await it.engine.queue()).operations == ()
        # What was sent before is still there to be read, and the reason behind it.
        ends = [await peer.until_terminal(frame_id) for frame_id in (1, 2, 3)]
        await peer.carrier.aclose()
    assert healthy
    assert set(healthy) == {"You said: all is well"}
    assert len(lost) == 3
    for record in lost:
        assert record.outcome == "dropped"
        assert record.abort is not None
        assert record.abort.reason == "slow_reader"
        assert isinstance(record.abort.receipt, AbortReceipt)
        assert record.abort.receipt.accepted
    for end in ends:
        assert end.message_type is MessageType.RESULT_DROP_REASON
        assert getattr(end.metadata, "drop_reason", 0) == DropReason.BACKPRESSURE
        assert end.body == b"reader_too_slow"
    for frame_id in (1, 2, 3):
        sequences = [
            getattr(packet.metadata, "result_sequence", 0)
            for packet in peer.packets
            if packet.frame_id == frame_id
        ]
        *partials, last = sequences
        assert partials == list(range(1, len(partials) + 1))
        assert last == len(partials)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reader_that_stops_is_lost_on_every_carrier(kind: str, tmp_path: Path) -> None:
    records: list[OperationRecord] = []
    async with scripted_server(
        limits=LIMITS, observers=[records.append], place=Place(kind, tmp_path)
    ) as started:
        peer = RawPeer(await started.carrier())
        session_id = await peer.open()
        await peer.submit(session_id, script(text="y" * 2000, repeat=50_000) | {"stream": True})
        with anyio.fail_after(SECONDS):
            while not records:
                await anyio.lowlevel.checkpoint()
    (record,) = records
    assert record.outcome == "dropped"
    assert record.abort is not None
    assert record.abort.reason == "slow_reader"


async def test_what_waits_for_a_reader_that_stops_is_bounded() -> None:
    async with served() as it:
        peer = await it.dial()
        session_id = await peer.open()
        operations = 4
        for _ in range(operations):
            await peer.submit(session_id, FLOOD)
        with anyio.fail_after(SECONDS):
            while not it.server.connections:
                await anyio.lowlevel.checkpoint()
        (connection,) = it.server.connections
        most = 0
        with anyio.fail_after(SECONDS):
            while len(it.ended) < operations:
                most = max(most, connection.waiting_bytes + connection.queued_bytes)
                await anyio.lowlevel.checkpoint()
        await peer.carrier.aclose()
    slack = 2 * 2200  # One event over a bound for each queue, and the terminals.
    assert most <= (1 + operations) * (32 * 1024 + slack)
    assert most > 32 * 1024


async def test_a_reader_that_pauses_within_its_time_misses_nothing() -> None:
    limits = ServerLimits(
        send_queue_bytes=16 * 1024, operation_queue_bytes=16 * 1024, slow_reader_seconds=SECONDS
    )
    chat = script(text="z" * 1000, repeat=8_000) | {"stream": True}
    async with served(limits) as it:
        peer = await it.dial()
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, chat)
        with anyio.fail_after(SECONDS):
            while not any(each.queued_bytes >= 16 * 1024 for each in it.server.connections):
                await anyio.lowlevel.checkpoint()
        events, _ = await peer.result(frame_id)
        await peer.carrier.aclose()
    assert sum(len(getattr(event, "delta", "")) for event in events) == 8_000_000


async def test_an_operation_whose_last_events_are_not_read_is_lost_too() -> None:
    """The engine has finished; what it said does not wait for ever."""
    chat = script(text="z" * 1000, repeat=40) | {"stream": True}
    limits = ServerLimits(send_queue_bytes=1, operation_queue_bytes=2**20, slow_reader_seconds=0.1)
    async with served(limits) as it:
        peer = await it.dial()
        session_id = await peer.open()
        await peer.submit(session_id, FLOOD)  # Fills what is between the two.
        await it.until(1)
        await peer.submit(session_id, chat)
        records = await it.until(2)
        await peer.carrier.aclose()
    assert [record.outcome for record in records] == ["dropped", "dropped"]


async def test_a_watch_that_is_not_read_is_lost_like_any_operation() -> None:
    async with served() as it:
        peer = await it.dial()
        session_id = await peer.open()
        await peer.submit(session_id, FLOOD)
        await it.until(1)
        document = build_control("queue.watch", {"per_second": 50})
        watch = await peer.submit_document(session_id, document)
        with anyio.fail_after(SECONDS):
            while not it.server.admission.control_operations:
                await anyio.lowlevel.checkpoint()
            busy = body()  # The queue changes, so there is something to say.
            async with (
                connect(str(it.server.endpoints[0])) as connection,
                connection.session() as session,
            ):
                while it.server.admission.control_operations:
                    await session.chat(busy).result()
        end = await peer.until_terminal(watch)
        await peer.carrier.aclose()
    assert getattr(end.metadata, "drop_reason", 0) == DropReason.BACKPRESSURE


async def test_a_cancelled_operation_sends_nothing_of_what_waited() -> None:
    limits = ServerLimits(
        send_queue_bytes=16 * 1024, operation_queue_bytes=64 * 1024, slow_reader_seconds=SECONDS
    )
    async with served(limits) as it:
        peer = await it.dial()
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, FLOOD)
        with anyio.fail_after(SECONDS):
            while not any(each.queued_bytes >= 64 * 1024 for each in it.server.connections):
                await anyio.lowlevel.checkpoint()
        (connection,) = it.server.connections
        await peer.send(peer.wire.cancel(session_id, frame_id))
        await it.until(1)
        assert connection.queued_bytes == 0
        await peer.until_terminal(frame_id)
        await peer.carrier.aclose()


# --- the queues -----------------------------------------------------------------------------------


class _Source(Sender):
    """Sends its name as often as it was told to."""

    def __init__(self, outbox: Outbox, name: bytes, times: int) -> None:
        self._outbox, self._name, self._left = outbox, name, times

    def send_next(self) -> bool:
        self._left -= 1
        self._outbox.put(self._name)
        return self._left > 0


async def test_operations_that_wait_take_turns() -> None:
    ours, theirs = memory_pair()
    outbox = Outbox(ours, limit=1024)
    queues = SendQueues(outbox)
    for name in (b"a", b"b", b"c"):
        queues.add(_Source(outbox, name, 4))
    gone = _Source(outbox, b"d", 4)
    queues.add(gone)
    queues.remove(gone)
    received = b""
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outbox.run)
            tasks.start_soon(queues.run)
            while len(received) < 12:
                received += await theirs.receive()
            assert len(queues) == 0
            tasks.cancel_scope.cancel()
    assert received == b"abc" * 4


async def test_a_queue_says_whether_it_was_emptied_in_time() -> None:
    queue = OperationQueue()
    queue.append(b"12345")
    with anyio.fail_after(SECONDS):
        assert await queue.at_most(5, 0.01)
        assert not await queue.at_most(4, 0.01)
        async with anyio.create_task_group() as tasks:

            async def empty() -> None:
                assert queue.pop() == b"12345"

            tasks.start_soon(empty)
            assert await queue.at_most(0, SECONDS)
        queue.append(b"1")
        queue.clear()
        assert await queue.at_most(0, 0.01)
