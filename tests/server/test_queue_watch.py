"""queue.watch: snapshots on change, not too often, never stale, and nothing kept."""

import gc
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nnrp_sched.engine.records import QueueSnapshot
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.profile import Cancelled, build_control, encode_event
from nnrp_sched.profile.control_bodies import WatchBody
from nnrp_sched.profile.events import QueueChanged, decode_event
from nnrp_sched.server.control import watch
from nnrp_sched.server.desk import Desk
from nnrp_sched.server.directory import Directory
from nnrp_sched.server.principal import Principal
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, body, script, scripted_server, scripted_session

pytestmark = pytest.mark.anyio

HELD: dict[str, Any] = script(text="x", hold=True)


async def test_a_watcher_sees_an_operation_wait_run_and_leave() -> None:
    states: list[list[str]] = []
    async with scripted_session(ScriptedEngine(slots=1)) as (_, session):
        with anyio.fail_after(SECONDS):
            first = session.chat(HELD, stream=True)
            await anext(first)
            async with aclosing(session.watch_queue(per_second=50)) as snapshots:
                states.append([row.state for row in (await anext(snapshots)).operations])
                second = session.chat(HELD, stream=True)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(second.__anext__)
                    while len((snapshot := await anext(snapshots)).operations) < 2:
                        pass
                    states.append([row.state for row in snapshot.operations])
                    delay = snapshot.operations[1].queue_delay_ms
                    # Still waiting, and seen to wait longer.
                    assert (await anext(snapshots)).operations[1].queue_delay_ms > delay
                    await first.cancel()
                while (snapshot := await anext(snapshots)).operations[0].id == first.name:
                    pass
                states.append([row.state for row in snapshot.operations])
                await second.cancel()
                while (await anext(snapshots)).operations:
                    pass
    assert states == [["running"], ["running", "waiting"], ["running"]]


class Recorder:
    """A channel that keeps what it is given; while `waiting` its peer has not read."""

    def __init__(self) -> None:
        self.waiting = False
        self.full = False
        self.sent: list[QueueSnapshot] = []
        self.asked = anyio.Event()
        self.freed = anyio.Event()

    async def room(self) -> bool:
        raise AssertionError

    async def flushed(self) -> bool:
        self.asked.set()
        await self.freed.wait()
        self.waiting = False
        return True

    def discard(self) -> None:
        raise AssertionError

    def mute(self) -> None:
        raise AssertionError

    def send_progress(self, stage: Any) -> None:
        raise AssertionError(stage)

    def send_overload(self, diagnostic: str) -> None:
        raise AssertionError(diagnostic)

    def send_partial(self, document: bytes) -> None:
        event = decode_event(document)
        assert isinstance(event, QueueChanged)
        self.sent.append(event.snapshot)

    def send_terminal(self, document: bytes, status_code: int) -> None:
        raise AssertionError((document, status_code))

    def send_drop(self, reason: Any, diagnostic: str) -> None:
        raise AssertionError((reason, diagnostic))


class Counting(ScriptedEngine):
    """Counts the looks at its queue, and gives as many rows as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.running = 0

    async def queue(self) -> QueueSnapshot:
        self.looks += 1
        await anyio.lowlevel.checkpoint()
        return QueueSnapshot((), self.running, 0, True, float(self.looks))

    async def looked(self, times: int) -> None:
        wanted = self.looks + times
        while self.looks < wanted:
            await anyio.lowlevel.checkpoint()


def desk(engine: ScriptedEngine) -> Desk:
    return Desk(engine, Directory(), Principal(True, set[int]), abort_seconds=1.0)


async def test_what_has_not_changed_is_not_sent_again() -> None:
    engine, channel = Counting(), Recorder()
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, desk(engine), WatchBody(per_second=1000), channel, 5.0)
            await engine.looked(5)
            assert [each.running for each in channel.sent] == [0]
            engine.running = 3
            await engine.looked(5)
            tasks.cancel_scope.cancel()
    assert [each.running for each in channel.sent] == [0, 3]


async def test_a_slow_reader_costs_no_looks_and_gets_the_newest_snapshot_next() -> None:
    engine, channel = Counting(), Recorder()
    channel.waiting = True
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, desk(engine), WatchBody(per_second=1000), channel, 5.0)
            await channel.asked.wait()
            engine.running = 7
            assert engine.looks == 0
            channel.freed.set()
            await engine.looked(2)
            tasks.cancel_scope.cancel()
    assert [each.running for each in channel.sent] == [7]


async def test_a_watch_ends_with_one_terminal_when_cancelled() -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        document = build_control("queue.watch", {"per_second": 50})
        frame_id = await peer.submit_document(session_id, document)
        with anyio.fail_after(SECONDS):
            while not any(packet.frame_id == frame_id for packet in peer.packets):
                await peer.next_event()
        await peer.send(peer.wire.cancel(session_id, frame_id))
        _, terminal = await peer.result(frame_id)
        await peer.result(await peer.submit(session_id, body()))
        assert len(peer.terminals(frame_id)) == 1
    assert terminal == Cancelled(reason="peer_cancelled")


async def test_unread_snapshots_give_way_to_newer_ones_at_the_client() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            watching = session.watch_queue(per_second=50)
            assert (await anext(watching)).operations == ()
            chat = session.chat(HELD, stream=True)
            await anext(chat)
            await anyio.wait_all_tasks_blocked()
            names: set[str | None] = set()
            while not names:
                names = {row.id for row in (await anext(watching)).operations}
            await watching.aclose()
            assert names == {chat.name}
            await chat.cancel()


async def test_a_watch_that_is_left_ends_on_the_server() -> None:
    async with scripted_session() as (served, session):
        with anyio.fail_after(SECONDS):
            async with aclosing(session.watch_queue()) as snapshots:
                await anext(snapshots)
                assert served.server.admission.control_operations == 1
            while served.server.admission.control_operations:
                await anyio.lowlevel.checkpoint()


async def test_2_000_watches_and_snapshots_in_a_row_leave_no_objects_behind() -> None:
    async with scripted_session() as (served, session):

        async def run(count: int) -> int:
            for _ in range(count):
                await session.queue()
                async with aclosing(session.watch_queue()) as snapshots:
                    await anext(snapshots)
            while served.server.admission.control_operations or session.in_flight:
                await anyio.lowlevel.checkpoint()
            gc.collect()
            return len(gc.get_objects())

        with anyio.fail_after(50):
            await run(600)  # More than the tombstones a session keeps.
            before = await run(100)
            after = await run(2_000)
        assert session.in_flight == 0
        assert len(served.server.directory) == 0
    assert after - before < 500


def test_the_event_of_a_watch_is_read_as_what_it_was() -> None:
    snapshot = QueueSnapshot((), 1, 2, False, 3.5)
    document = encode_event(QueueChanged(snapshot))
    assert b'"type":"response.queue"' in document
    assert decode_event(document) == QueueChanged(snapshot)
