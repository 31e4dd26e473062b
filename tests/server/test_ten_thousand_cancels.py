"""10,000 streaming operations cancelled at random moments: one terminal each, nothing after it."""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.profile import build_envelope
from nnrp_sched.transport import Carrier
from nnrp_sched.wire import ClientConnection, Packet, PacketReader
from nnrp_sched.wire.enums import MessageType
from tests.support.raw_peer import RawPeer
from tests.support.serving import InMemory, script, scripted_server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

OPERATIONS = 10_000
AT_ONCE = 100
SECONDS = 150
ENDLESS: dict[str, Any] = script(text=" word", repeat=1_000_000) | {"stream": True}
_TERMINALS = {MessageType.RESULT_PUSH, MessageType.RESULT_DROP, MessageType.RESULT_DROP_REASON}
_COMMANDS = ("cancel", "abort", "frame_cancel")


class Canceller:
    """Submits and cancels on one session; looks at every packet itself, late ones too."""

    def __init__(self, carrier: Carrier, wire: ClientConnection, session_id: int) -> None:
        self._carrier = carrier
        self._wire = wire
        self._session_id = session_id
        self._reader = PacketReader(2**20)
        self._random = random.Random(session_id)
        self._document = build_envelope(ENDLESS)
        self._submitted = 0
        self._due: dict[int, int] = {}
        """By frame: how many more events are seen before it is cancelled."""
        self.terminals: Counter[int] = Counter()
        self.kinds: Counter[str] = Counter()
        self.events = 0
        self.late: deque[Packet] = deque(maxlen=10)

    async def run(self, operations: int) -> None:
        await self._carrier.send(b"".join(self._submit() for _ in range(AT_ONCE)))
        while len(self.terminals) < operations:
            data = await self._carrier.receive()
            assert data, "the server ended the connection"
            answer = b"".join(self._take(data, operations))
            if answer:
                await self._carrier.send(answer)

    async def silent(self) -> None:
        """Read what still comes; ends when it is cancelled."""
        while data := await self._carrier.receive():
            for _ in self._take(data, 0):
                raise AssertionError

    def _take(self, data: bytes, operations: int) -> Iterator[bytes]:
        self._wire.receive(data)
        self._reader.feed(data)
        while (packet := self._reader.next_packet()) is not None:
            frame_id = packet.frame_id
            if frame_id in self.terminals:
                self.late.append(packet)
            if packet.message_type in _TERMINALS:
                self.terminals[frame_id] += 1
                self.kinds[packet.message_type.name] += 1
                if self._submitted < operations:
                    yield self._submit()
            elif packet.message_type is MessageType.PARTIAL_RESULT:
                self.events += 1
        # Decided on for all at once: an operation gets its turn whether it said something or not.
        for frame_id in list(self._due):
            self._due[frame_id] -= 1
            if self._due[frame_id] < 0:
                yield self._cancel(frame_id)

    def _submit(self) -> bytes:
        self._submitted += 1
        frame_id, data = self._wire.submit(
            self._session_id, self._document, operation_id=self._submitted
        )
        self._due[frame_id] = self._random.choice((0, 0, 1, 2, 3, 5, 8))
        if self._random.random() < 0.2:
            data += self._cancel(frame_id)  # In one piece with its submit.
        return data

    def _cancel(self, frame_id: int) -> bytes:
        del self._due[frame_id]
        how = self._random.choice(_COMMANDS)
        command: bytes = getattr(self._wire, how)(self._session_id, frame_id)
        return command


async def canceller(served: InMemory) -> Canceller:
    peer = RawPeer(served.dial())
    session_id = await peer.open()
    return Canceller(peer.carrier, peer.wire, session_id)


async def test_each_of_10_000_cancelled_streams_has_one_terminal_and_no_event_after_it() -> None:
    engine = ScriptedEngine(slots=50)
    async with scripted_server(engine) as served:
        mine = await canceller(served)
        tasks = len(asyncio.all_tasks())
        with anyio.fail_after(SECONDS):
            await mine.run(OPERATIONS)
            while len(served.server.admission):
                await anyio.lowlevel.checkpoint()
            async with anyio.create_task_group() as group:
                group.start_soon(mine.silent)
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
        assert len(asyncio.all_tasks()) == tasks
        assert (await engine.queue()).operations == ()
        assert len(served.server.directory) == 0
    assert len(mine.terminals) == OPERATIONS
    assert set(mine.terminals.values()) == {1}
    assert list(mine.late) == []
    assert mine.events > OPERATIONS / 10
    assert mine.kinds["RESULT_PUSH"] > mine.kinds["RESULT_DROP_REASON"] > OPERATIONS / 5
