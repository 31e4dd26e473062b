"""A client that speaks the wire itself, keeps every packet it gets, and can break the rules."""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import anyio

from nnrp_sched.profile import Event, build_envelope, decode_event
from nnrp_sched.transport import Carrier
from nnrp_sched.wire import (
    ClientConnection,
    ClientEvent,
    HelloAcknowledged,
    Limits,
    MessageType,
    Packet,
    PacketReader,
    PartialReceived,
    ProgressStage,
    ResultDropped,
    ResultReceived,
    SessionOpened,
)
from nnrp_sched.wire.operation_messages import Progress

SECONDS = 20
E = TypeVar("E", bound=ClientEvent)


class RawPeer:
    """Sends bytes or commands; `packets` is the log of all that the server sent."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.wire = ClientConnection(Limits())
        self.packets: list[Packet] = []
        self._reader = PacketReader(64 * 1024 * 1024)
        self._events: deque[ClientEvent] = deque()
        self._next_operation = 1000

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self.carrier.send(data)

    async def next_event(self) -> ClientEvent:
        """The next event of any type."""
        with anyio.fail_after(SECONDS):
            while not self._events:
                assert await self._pull(), "the stream ended before the next event"
            return self._events.popleft()

    async def expect(self, event_type: type[E]) -> E:
        """The next event of a type; events before it are passed over."""
        while not isinstance(event := await self.next_event(), event_type):
            pass
        return event

    async def read_to_the_end(self) -> list[Packet]:
        """Wait for the server to close; all its packets."""
        with anyio.fail_after(SECONDS):
            while await self._pull():
                pass
        return self.packets

    async def until_terminal(self, frame_id: int) -> Packet:
        """The first terminal packet of a frame, also of one our own machine never submitted."""
        with anyio.fail_after(SECONDS):
            while not (found := self.terminals(frame_id)):
                assert await self._pull(), "the stream ended before the terminal"
            return found[0]

    async def until(self, holds: Callable[[list[Packet]], bool]) -> None:
        """Read until something holds of all packets so far."""
        with anyio.fail_after(SECONDS):
            while not holds(self.packets):
                assert await self._pull(), "the stream ended before that"

    async def _pull(self) -> bool:
        data = await self.carrier.receive()
        if not data:
            return False
        self._reader.feed(data)
        while (packet := self._reader.next_packet()) is not None:
            self.packets.append(packet)
        if not self.wire.closed:
            self._events.extend(self.wire.receive(data))
        return True

    # --- steps ----------------------------------------------------------------------------------

    async def open(self) -> int:
        """Hello and one session; its id."""
        await self.send(self.wire.hello())
        await self.expect(HelloAcknowledged)
        return await self.open_session()

    async def open_session(self, **members: Any) -> int:
        """One more session; its id."""
        await self.send(self.wire.open_session(**members))
        return (await self.expect(SessionOpened)).session_id

    async def submit(self, session_id: int, chat: dict[str, Any], **members: Any) -> int:
        """Submit a chat; its frame id."""
        return await self.submit_document(session_id, build_envelope(chat, **members))

    async def submit_document(self, session_id: int, document: bytes) -> int:
        """Submit any document; its frame id."""
        self._next_operation += 1
        frame_id, data = self.wire.submit(session_id, document, operation_id=self._next_operation)
        await self.send(data)
        return frame_id

    async def result(self, frame_id: int) -> tuple[list[Event], Event | ResultDropped | None]:
        """The events of a frame and how it ended; other frames' events are passed over."""
        events: list[Event] = []
        while True:
            event = await self.next_event()
            if getattr(event, "frame_id", None) != frame_id:
                continue
            if isinstance(event, PartialReceived):
                events.append(decode_event(event.body))
            elif isinstance(event, ResultDropped):
                return events, event
            elif isinstance(event, ResultReceived):
                assert event.fault is None, event.fault
                return events, decode_event(event.document) if event.document else None

    def terminals(self, frame_id: int) -> list[Packet]:
        """Every terminal packet of a frame so far; more than one is a fault."""
        kinds = {
            MessageType.RESULT_PUSH,
            MessageType.RESULT_DROP,
            MessageType.RESULT_DROP_REASON,
        }
        return [
            packet
            for packet in self.packets
            if packet.frame_id == frame_id and packet.message_type in kinds
        ]

    def stages(self, frame_id: int) -> list[ProgressStage]:
        """The stages that PROGRESS told of a frame so far."""
        packets = [each for each in self.packets if each.frame_id == frame_id]
        return [
            ProgressStage(packet.metadata.stage)
            for packet in packets
            if isinstance(packet.metadata, Progress)
        ]
