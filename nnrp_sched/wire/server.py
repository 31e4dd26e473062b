"""The server's end of a connection."""

from collections.abc import Callable

from nnrp_sched.wire.enums import DropReason, SessionErrorCode
from nnrp_sched.wire.events import ServerEvent, SessionOpenReceived
from nnrp_sched.wire.limits import DEFAULT_LIMITS, Limits


class ServerConnection:
    """Bytes in, events out; commands in, bytes out."""

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, *, clock_us: Callable[[], int] | None = None
    ) -> None:
        raise NotImplementedError

    @property
    def session_ids(self) -> tuple[int, ...]:
        """The sessions that are open or closing."""
        raise NotImplementedError

    def receive(self, data: bytes) -> list[ServerEvent]:
        """Take what the carrier delivered."""
        raise NotImplementedError

    def receive_end(self) -> list[ServerEvent]:
        """Take the carrier's end of stream."""
        raise NotImplementedError

    def accept_session(
        self,
        request: SessionOpenReceived,
        session_id: int,
        *,
        max_in_flight: int,
        operation_credit: int,
    ) -> bytes:
        """SESSION_OPEN_ACK opened."""
        raise NotImplementedError

    def reject_session(
        self, request: SessionOpenReceived, code: SessionErrorCode, diagnostic: str
    ) -> bytes:
        """SESSION_OPEN_ACK rejected."""
        raise NotImplementedError

    def partial_result(self, session_id: int, frame_id: int, body: bytes) -> bytes:
        """PARTIAL_RESULT."""
        raise NotImplementedError

    def push_result(
        self,
        session_id: int,
        frame_id: int,
        document: bytes | None,
        *,
        status_code: int = 200,
        queue_ms: int = 0,
        inference_ms: int = 0,
        server_total_ms: int = 0,
    ) -> bytes:
        """RESULT_PUSH."""
        raise NotImplementedError

    def drop_result(
        self, session_id: int, frame_id: int, reason: DropReason, diagnostic: str = ""
    ) -> bytes:
        """RESULT_DROP_REASON."""
        raise NotImplementedError

    def acknowledge_session_close(self, session_id: int) -> bytes:
        """SESSION_CLOSE_ACK closed."""
        raise NotImplementedError

    def abandon_operations(self, session_id: int) -> list[int]:
        """End a session's operations without a message."""
        raise NotImplementedError

    def recoverable_error(
        self,
        code: int,
        diagnostic: str,
        *,
        session_id: int = 0,
        frame_id: int = 0,
        retry_after_ms: int = 0,
    ) -> bytes:
        """ERROR_RECOVERABLE."""
        raise NotImplementedError

    def close(self, diagnostic: str = "") -> bytes:
        """CLOSE."""
        raise NotImplementedError
