"""What a server checks of a submit, and the deadlines that may come before it."""

from nnrp_sched.errors import RemoteProtocolError
from nnrp_sched.wire.enums import MessageType
from nnrp_sched.wire.events import SubmitFault
from nnrp_sched.wire.operation import Operation
from nnrp_sched.wire.operation_messages import FrameSubmit, Scheduling
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session import Session
from nnrp_sched.wire.typed_body import decode_document


def examine_submit(
    session: Session, submit: FrameSubmit, body: bytes, value_fault: str | None
) -> tuple[bytes, SubmitFault | None]:
    """The document of a submit, or why it cannot be served (wire digest 4.1; upstream 5.3).

    The body is judged first, then the operation id, then the room in the session.
    """
    if value_fault is not None:
        return b"", SubmitFault("invalid_submit_body", value_fault)
    try:
        document = decode_document(submit.payload_kind_bitmap, submit.payload_frame_count, body)
    except RemoteProtocolError as error:
        return b"", SubmitFault("invalid_submit_body", str(error))
    if document is None:
        return b"", SubmitFault("invalid_submit_body", "the submit carries no document")
    if session.knows_operation(submit.operation_id):
        message = f"operation {submit.operation_id} was used before in this session"
        return b"", SubmitFault("duplicate_operation_id", message)
    if len(session.operations) >= session.max_in_flight:
        message = f"{session.max_in_flight} operations are in flight already"
        return b"", SubmitFault("adapter_operation_limit", message)
    return document, None


class EarlyDeadlines:
    """DEADLINE and EXPIRE_AT messages that came before their submit (wire digest 6-25).

    At most `limit` of them: no more are taken until a submit passes those that wait. Those of a
    frame id that was passed over are dropped then, because it can never come any more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[tuple[int, int, MessageType], Packet] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, operation_id: int, packet: Packet) -> bool:
        """Keep a message; the latest of a type by its control sequence counts.

        False when there is no room for one more.
        """
        key = (packet.frame_id, operation_id, packet.message_type)
        kept = self._kept.get(key)
        if kept is None and len(self._kept) >= self._limit:
            return False
        if kept is None or _control_sequence(packet) >= _control_sequence(kept):
            self._kept[key] = packet
        return True

    def take(self, operation: Operation) -> list[Packet]:
        """The messages of an operation that was just submitted."""
        if not self._kept:
            return []
        due = [key for key in self._kept if key[0] <= operation.frame_id]
        packets = [(key, self._kept.pop(key)) for key in due]
        ids = (operation.frame_id, operation.operation_id)
        return [packet for key, packet in packets if key[:2] == ids]


def _control_sequence(packet: Packet) -> int:
    metadata = packet.metadata
    return metadata.control_sequence if isinstance(metadata, Scheduling) else 0
