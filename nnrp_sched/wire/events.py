"""What the two connection machines report: frozen values, one class for each thing that happened.

An event that needs an answer the machine can give itself comes as `Reply`: write its bytes in the
order of the list. Every other event is for the owner of the machine.
"""

from typing import Literal

import msgspec

from nnrp_sched.errors import RemoteProtocolError
from nnrp_sched.wire.enums import DropReason, MessageType
from nnrp_sched.wire.operation_messages import FrameSubmit
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session_messages import (
    ClientHello,
    ServerHelloAck,
    SessionClose,
    SessionOpen,
    SessionOpenAck,
)

# --- both roles ---------------------------------------------------------------------------------


class Reply(msgspec.Struct, frozen=True):
    """Bytes to write to the peer; nothing else to do."""

    data: bytes


class ControlReceived(msgspec.Struct, frozen=True):
    """A valid message that changes nothing in the machine: trace, priority, progress, credit…

    `frame_id` is the operation it is about, 0 for the session (and `session_id` 0 for the
    connection). Messages of finished operations never come here.
    """

    packet: Packet
    session_id: int
    frame_id: int


class CapabilitiesAgreed(msgspec.Struct, frozen=True):
    """A session's capabilities are these from now on; on the server the answer came as a `Reply`.

    Until the first of these events nothing optional is sent in the session.
    """

    session_id: int
    tokens: frozenset[str]


class ConnectionCloseReceived(msgspec.Struct, frozen=True):
    """The peer sent CLOSE: nothing follows in either direction (wire digest 2.2)."""

    diagnostic: str


class ConnectionFailed(msgspec.Struct, frozen=True):
    """The connection is unusable. The last event ever; what can still be written came before."""

    error: RemoteProtocolError


class SessionFailed(msgspec.Struct, frozen=True):
    """A session ended by a fault: one of the peer's that we refused, or an ERROR from the peer.

    In the first case the ERROR came before as a `Reply`. `code` is an ErrorCode, or a family code
    of the peer's. `frame_ids` are the operations that ended with it, without a message.
    """

    session_id: int
    code: int
    diagnostic: str
    frame_ids: tuple[int, ...]

    @property
    def message(self) -> str:
        """The diagnostic, under the name every error has."""
        return self.diagnostic


# --- server -------------------------------------------------------------------------------------


class HelloReceived(msgspec.Struct, frozen=True):
    """A client introduced itself and was accepted; the SERVER_HELLO_ACK came as a `Reply`."""

    hello: ClientHello


class SessionOpenReceived(msgspec.Struct, frozen=True, eq=False):
    """A session to accept or to reject. Requests are answered in the order they came.

    `body` holds resume token, auth bytes and extension, in that order, as `open` counts them.
    """

    open: SessionOpen
    body: bytes = b""


class SubmitFault(msgspec.Struct, frozen=True):
    """Why a submit cannot be served; the profile's error code and a text for its message."""

    code: Literal["invalid_submit_body", "duplicate_operation_id", "adapter_operation_limit"]
    message: str


class SubmitReceived(msgspec.Struct, frozen=True):
    """A new operation. With a `fault` its document is empty and the frame still needs a terminal.

    A fault is answered by `push_result` with a `response.error`; the session goes on (wire digest
    4.1, R10). A faulty operation is never cancelled by the peer: its end is already on the way.
    """

    session_id: int
    frame_id: int
    operation_id: int
    document: bytes
    trace_id: int
    metadata: FrameSubmit
    fault: SubmitFault | None = None


class CancelReceived(msgspec.Struct, frozen=True):
    """The peer wants an operation to stop; its terminal is the answer (wire digest 3.6).

    Comes once an operation for CANCEL or FRAME_CANCEL and once more for an ABORT after them. After
    an ABORT the machine refuses further partial results.
    """

    session_id: int
    frame_id: int
    operation_id: int
    message_type: MessageType
    reason: int
    source_role: int
    diagnostic: str


class SessionCloseReceived(msgspec.Struct, frozen=True):
    """A client closes a session: finish or abandon its operations, then acknowledge."""

    session_id: int
    close: SessionClose


ServerEvent = (
    Reply
    | HelloReceived
    | SessionOpenReceived
    | SubmitReceived
    | CancelReceived
    | ControlReceived
    | CapabilitiesAgreed
    | SessionCloseReceived
    | SessionFailed
    | ConnectionCloseReceived
    | ConnectionFailed
)


# --- client -------------------------------------------------------------------------------------


class HelloAcknowledged(msgspec.Struct, frozen=True):
    """The server accepted the hello; sessions can be opened."""

    ack: ServerHelloAck


class SessionOpened(msgspec.Struct, frozen=True):
    """The oldest unanswered `open_session` succeeded."""

    session_id: int
    ack: SessionOpenAck


class SessionOpenRejected(msgspec.Struct, frozen=True):
    """The oldest unanswered `open_session` was refused; `ack.session_error_code` says why."""

    ack: SessionOpenAck
    diagnostic: str


class PartialReceived(msgspec.Struct, frozen=True):
    """One event of a stream: `body` is the bare JSON (wire digest 4.2)."""

    session_id: int
    frame_id: int
    operation_id: int
    result_sequence: int
    body: bytes


class ResultReceived(msgspec.Struct, frozen=True):
    """The terminal RESULT_PUSH. `document` None is an empty success, unless `fault` says more.

    `fault` tells what is wrong with the typed body; the operation has ended all the same.
    """

    session_id: int
    frame_id: int
    operation_id: int
    status_code: int
    document: bytes | None
    queue_ms: int
    inference_ms: int
    server_total_ms: int
    fault: str | None = None


class ResultDropped(msgspec.Struct, frozen=True):
    """The terminal RESULT_DROP_REASON, or RESULT_DROP with `reason` None.

    `reason` is None for a number outside the registry too; then `diagnostic` names it.
    """

    session_id: int
    frame_id: int
    operation_id: int
    reason: DropReason | None
    diagnostic: str


class OperationFailed(msgspec.Struct, frozen=True):
    """The server failed one operation by ERROR, or broke the protocol inside it.

    In the second case a `Reply` with CANCEL came first.
    """

    session_id: int
    frame_id: int
    code: int
    diagnostic: str


class SessionClosed(msgspec.Struct, frozen=True):
    """A session we closed is gone; `frame_ids` are operations it left without a terminal."""

    session_id: int
    frame_ids: tuple[int, ...] = ()


ClientEvent = (
    Reply
    | HelloAcknowledged
    | SessionOpened
    | SessionOpenRejected
    | PartialReceived
    | ResultReceived
    | ResultDropped
    | OperationFailed
    | SessionFailed
    | SessionClosed
    | ControlReceived
    | CapabilitiesAgreed
    | ConnectionCloseReceived
    | ConnectionFailed
)
