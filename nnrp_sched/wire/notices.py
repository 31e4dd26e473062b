"""The packets that report errors, and the texts they carry (wire digest 3.5)."""

from nnrp_sched.wire.control_enums import RecoveryFlag
from nnrp_sched.wire.enums import ErrorScope, MessageType, Role
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session_messages import ErrorNotice, RecoverableError

_DIAGNOSTIC_BYTES = 1024


def error_packet(
    code: int, diagnostic: str, scope: ErrorScope, *, fatal: bool, session_id: int = 0
) -> Packet:
    """ERROR: something ended, or was never there."""
    body = diagnostic_body(diagnostic)
    notice = ErrorNotice(
        code=code,
        scope=scope,
        is_fatal=int(fatal),
        retry_after_ms=0,
        related_session=session_id,
        related_frame=0,
        related_view=0,
        diagnostic_bytes=len(body),
    )
    return Packet(MessageType.ERROR, notice, body, session_id)


def recoverable_error_packet(
    role: Role, code: int, diagnostic: str, session_id: int, frame_id: int, retry_after_ms: int
) -> Packet:
    """ERROR_RECOVERABLE: one message was refused; its scope is the narrowest id given."""
    scope = ErrorScope.SESSION if session_id else ErrorScope.CONNECTION
    if frame_id:
        scope = ErrorScope.FRAME
    body = diagnostic_body(diagnostic)
    notice = RecoverableError(
        code=code,
        scope=scope,
        recovery_action=0,
        source_role=role,
        flags=RecoveryFlag.WAIT_FIRST if retry_after_ms else 0,
        retry_after_ms=retry_after_ms,
        related_session=session_id,
        related_frame=frame_id,
        related_view=0,
        diagnostic_bytes=len(body),
    )
    return Packet(MessageType.ERROR_RECOVERABLE, notice, body, session_id, frame_id)


def diagnostic_body(diagnostic: str) -> bytes:
    """A diagnostic as it goes on the wire: UTF-8, bounded, cut between characters."""
    data = diagnostic.encode(errors="replace")
    return data if len(data) <= _DIAGNOSTIC_BYTES else _cut(data)


def _cut(data: bytes) -> bytes:
    return data[:_DIAGNOSTIC_BYTES].decode(errors="ignore").encode()


def diagnostic_text(data: bytes) -> str:
    """A peer's diagnostic: whatever it sent, as text."""
    return data[:_DIAGNOSTIC_BYTES].decode(errors="replace")
