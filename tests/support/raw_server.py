"""A server that speaks the wire itself and can answer anything."""

from collections import deque
from typing import TypeVar

import anyio

from nnrp_sched.transport import Carrier
from nnrp_sched.wire import (
    Limits,
    Reply,
    ServerConnection,
    ServerEvent,
    SessionOpenReceived,
    SubmitReceived,
)

SECONDS = 20
E = TypeVar("E", bound=ServerEvent)


class RawServer:
    """The other end of a client under test."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.wire = ServerConnection(Limits())
        self._events: deque[ServerEvent] = deque()

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self.carrier.send(data)

    async def expect(self, *event_types: type[E]) -> E:
        """The next event of a type; replies are sent, other events passed over."""
        with anyio.fail_after(SECONDS):
            while True:
                while self._events:
                    event = self._events.popleft()
                    if isinstance(event, Reply):
                        await self.send(event.data)
                    if isinstance(event, event_types):
                        return event
                data = await self.carrier.receive()
                assert data, f"the client left before {event_types}"
                self._events.extend(self.wire.receive(data))

    async def accept_session(self, *, max_in_flight: int = 64) -> int:
        """Answer hello and one SESSION_OPEN; the session's id."""
        request = await self.expect(SessionOpenReceived)
        await self.send(
            self.wire.accept_session(
                request, 1, max_in_flight=max_in_flight, operation_credit=max_in_flight
            )
        )
        return 1

    async def submitted(self) -> SubmitReceived:
        """The next operation."""
        return await self.expect(SubmitReceived)

    async def partial(self, submit: SubmitReceived, body: bytes) -> None:
        """Send any bytes as an event."""
        await self.send(self.wire.partial_result(submit.session_id, submit.frame_id, body))

    async def push(self, submit: SubmitReceived, document: bytes | None) -> None:
        """Send any bytes as the terminal document."""
        await self.send(self.wire.push_result(submit.session_id, submit.frame_id, document))
