"""The client's end of a connection."""

from collections.abc import Callable

from nnrp_sched.wire.enums import CancelReason, InFlightPolicy
from nnrp_sched.wire.events import ClientEvent
from nnrp_sched.wire.limits import DEFAULT_LIMITS, Limits


class ClientConnection:
    """Bytes in, events out; commands in, bytes out."""

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, *, clock_us: Callable[[], int] | None = None
    ) -> None:
        raise NotImplementedError

    @property
    def session_ids(self) -> tuple[int, ...]:
        """The sessions that are open or closing."""
        raise NotImplementedError

    def receive(self, data: bytes) -> list[ClientEvent]:
        """Take what the carrier delivered."""
        raise NotImplementedError

    def receive_end(self) -> list[ClientEvent]:
        """Take the carrier's end of stream."""
        raise NotImplementedError

    def hello(self) -> bytes:
        """CLIENT_HELLO."""
        raise NotImplementedError

    def open_session(
        self, *, priority: int = 1, max_in_flight: int = 256, requested_session_id: int = 0
    ) -> bytes:
        """SESSION_OPEN."""
        raise NotImplementedError

    def submit(
        self, session_id: int, document: bytes, *, operation_id: int, trace_id: int = 0
    ) -> tuple[int, bytes]:
        """FRAME_SUBMIT: the frame id and the bytes."""
        raise NotImplementedError

    def cancel(
        self,
        session_id: int,
        frame_id: int,
        *,
        reason: CancelReason = CancelReason.USER_CANCELLED,
        diagnostic: str = "",
    ) -> bytes:
        """CANCEL."""
        raise NotImplementedError

    def abort(
        self,
        session_id: int,
        frame_id: int,
        *,
        reason: CancelReason = CancelReason.USER_CANCELLED,
        diagnostic: str = "",
    ) -> bytes:
        """ABORT."""
        raise NotImplementedError

    def frame_cancel(self, session_id: int, frame_id: int) -> bytes:
        """FRAME_CANCEL."""
        raise NotImplementedError

    def trace_context(
        self,
        session_id: int,
        frame_id: int,
        trace_id: int,
        span_id: int,
        parent_span_id: int = 0,
        flags: int = 0,
    ) -> bytes:
        """TRACE_CONTEXT."""
        raise NotImplementedError

    def close_session(
        self, session_id: int, *, policy: InFlightPolicy = InFlightPolicy.DRAIN
    ) -> bytes:
        """SESSION_CLOSE."""
        raise NotImplementedError

    def close(self, diagnostic: str = "") -> bytes:
        """CLOSE."""
        raise NotImplementedError
