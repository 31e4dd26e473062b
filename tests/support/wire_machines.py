"""Machines brought to the state a test starts from, and readers of what they answer."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from nnrp_sched.wire import (
    ClientConnection,
    Limits,
    Packet,
    PacketReader,
    Reply,
    ServerConnection,
    SessionOpenReceived,
)
from nnrp_sched.wire.limits import DEFAULT_LIMITS
from tests.support.wire_packets import DOCUMENT, OPERATION, SESSION

E = TypeVar("E")


def only(events: Sequence[Any], kind: type[E]) -> E:
    """The single event, which is of the kind."""
    (event,) = events
    assert isinstance(event, kind), event
    return event


def first(events: Sequence[Any], kind: type[E]) -> E:
    """The first event of the kind."""
    return next(event for event in events if isinstance(event, kind))


def packets(data: bytes) -> list[Packet]:
    """The packets in some bytes."""
    reader = PacketReader(2**30)
    reader.feed(data)
    found: list[Packet] = []
    while (packet := reader.next_packet()) is not None:
        found.append(packet)
    reader.end()
    return found


def replies(events: Sequence[Any]) -> list[Packet]:
    """The packets of all replies."""
    return packets(b"".join(event.data for event in events if isinstance(event, Reply)))


class Pair:
    """A server and a client machine after the hello."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS, offers: Iterable[str] = ()) -> None:
        self.server = ServerConnection(limits, offers=offers)
        self.client = ClientConnection(limits)
        greeted = self.server.receive(self.client.hello())
        self.client.receive(first(greeted, Reply).data)

    def open(self, session_id: int = SESSION, max_in_flight: int = 64) -> int:
        """Open a session on both."""
        request = only(
            self.server.receive(self.client.open_session(max_in_flight=max_in_flight)),
            SessionOpenReceived,
        )
        self.client.receive(
            self.server.accept_session(
                request, session_id, max_in_flight=max_in_flight, operation_credit=max_in_flight
            )
        )
        return session_id

    def submit(self, session_id: int = SESSION, operation_id: int = OPERATION) -> int:
        """Submit an operation; its frame id."""
        frame_id, data = self.client.submit(session_id, DOCUMENT, operation_id=operation_id)
        self.server.receive(data)
        return frame_id


def with_session(limits: Limits = DEFAULT_LIMITS) -> Pair:
    """A pair with session 7 open."""
    pair = Pair(limits)
    pair.open()
    return pair


def with_operation(limits: Limits = DEFAULT_LIMITS) -> Pair:
    """A pair with operation 901 in flight as frame 1 of session 7."""
    pair = with_session(limits)
    pair.submit()
    return pair
