"""One frame's way back to its peer."""

from nnrp_sched.transport import Outbox
from nnrp_sched.wire import DropReason, ServerConnection


class FrameChannel:
    """Turns an operation's events into packets of its frame.

    Once the frame, its session or the connection has ended it sends nothing: the operation is about
    to be told.
    """

    __slots__ = ("_frame_id", "_outbox", "_session_id", "_wire")

    def __init__(
        self, wire: ServerConnection, outbox: Outbox, session_id: int, frame_id: int
    ) -> None:
        self._wire = wire
        self._outbox = outbox
        self._session_id = session_id
        self._frame_id = frame_id

    @property
    def full(self) -> bool:
        """Whether the peer reads too slowly for more events now."""
        return self._outbox.full

    async def room(self) -> None:
        """Wait until the peer has read enough."""
        await self._outbox.wait_below(self._outbox.limit)

    def send_partial(self, document: bytes) -> None:
        """Send one event as PARTIAL_RESULT."""
        if self._wire.in_flight(self._session_id, self._frame_id):
            self._outbox.put(self._wire.partial_result(self._session_id, self._frame_id, document))

    def send_terminal(self, document: bytes, status_code: int) -> None:
        """Send the terminal document as RESULT_PUSH."""
        if self._wire.in_flight(self._session_id, self._frame_id):
            self._outbox.put(
                self._wire.push_result(
                    self._session_id, self._frame_id, document, status_code=status_code
                )
            )

    def send_drop(self, reason: DropReason, diagnostic: str) -> None:
        """End the operation with RESULT_DROP_REASON."""
        if self._wire.in_flight(self._session_id, self._frame_id):
            self._outbox.put(
                self._wire.drop_result(self._session_id, self._frame_id, reason, diagnostic)
            )
