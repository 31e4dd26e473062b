"""One frame's way back to its peer."""

from nnrp_sched.server.limits import ServerLimits
from nnrp_sched.server.load import Load
from nnrp_sched.server.send_queue import OperationQueue, Sender, SendQueues
from nnrp_sched.transport import Outbox
from nnrp_sched.wire import (
    CapabilityToken,
    DropReason,
    HintReason,
    ProgressStage,
    ServerConnection,
)


class FrameChannel(Sender):
    """Turns an operation's events into packets of its frame.

    While the outbox is full they wait here, up to a bound. Once the frame, its session or the
    connection has ended it sends nothing: the operation is about to be told.
    """

    __slots__ = (
        "_frame_id",
        "_limits",
        "_load",
        "_muted",
        "_outbox",
        "_queue",
        "_queues",
        "_session_id",
        "_wire",
    )

    def __init__(
        self,
        wire: ServerConnection,
        outbox: Outbox,
        queues: SendQueues,
        limits: ServerLimits,
        load: Load,
        session_id: int,
        frame_id: int,
    ) -> None:
        self._wire = wire
        self._outbox = outbox
        self._queues = queues
        self._limits = limits
        self._load = load
        self._session_id = session_id
        self._frame_id = frame_id
        self._queue = OperationQueue()
        self._muted = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of events that wait here."""
        return self._queue.size

    @property
    def waiting(self) -> bool:
        """Whether events wait here for the peer."""
        return self._queue.size > 0

    @property
    def full(self) -> bool:
        """Whether as much waits as may; `room` is to be awaited before more is sent."""
        return self._queue.size >= self._limits.operation_queue_bytes

    async def room(self) -> bool:
        """Wait until half of the queue is free; False when the peer reads too slowly for that."""
        half = self._limits.operation_queue_bytes // 2
        return await self._queue.at_most(half, self._limits.slow_reader_seconds)

    async def flushed(self) -> bool:
        """Wait until nothing waits here; False when the peer reads too slowly for that."""
        return await self._queue.at_most(0, self._limits.slow_reader_seconds)

    def discard(self) -> None:
        """Forget what waits: the operation ends without it."""
        self._queues.remove(self)
        self._queue.clear()

    def mute(self) -> None:
        """Send no event any more, not even one that is just being made."""
        self._muted = True
        self.discard()

    def send_partial(self, document: bytes) -> None:
        """Send one event as PARTIAL_RESULT, now or when there is room."""
        if self._muted or not self._wire.in_flight(self._session_id, self._frame_id):
            return
        if self.waiting or self._outbox.full:
            self._queue.append(document)
            self._queues.add(self)
        else:
            self._outbox.put(self._wire.partial_result(self._session_id, self._frame_id, document))

    def send_next(self) -> bool:
        """Send the oldest event that waits; whether more do."""
        if not self._wire.in_flight(self._session_id, self._frame_id):
            self._queue.clear()
        elif self.waiting:
            document = self._queue.pop()
            self._outbox.put(self._wire.partial_result(self._session_id, self._frame_id, document))
        return self.waiting

    def send_progress(self, stage: ProgressStage) -> None:
        """Tell how far the operation is, where that was negotiated and nothing waits before it."""
        if (
            self._has(CapabilityToken.PROGRESS_PARTIAL)
            and not self.waiting
            and not self._outbox.full
            and self._wire.in_flight(self._session_id, self._frame_id)
        ):
            self._outbox.put(self._wire.progress(self._session_id, self._frame_id, stage))

    def send_overload(self, diagnostic: str) -> None:
        """Say that the server is too busy, and for how long; the terminal follows."""
        if not self._wire.in_flight(self._session_id, self._frame_id):
            return
        wait = self._load.retry_after_ms
        reason = HintReason.SERVER_BUSY
        self._outbox.put(self._wire.result_hint(self._session_id, reason, retry_after_ms=wait))
        if self._has(CapabilityToken.RECOVERABLE_ERROR):
            self._outbox.put(
                self._wire.retry_after(
                    self._session_id, self._frame_id, retry_after_ms=wait, diagnostic=diagnostic
                )
            )

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

    def _has(self, token: CapabilityToken) -> bool:
        return token in self._wire.capabilities(self._session_id)
