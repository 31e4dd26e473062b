"""A packet as a value: the header's fields, the metadata struct and the body."""

import msgspec

from nnrp_sched.wire.enums import MessageType
from nnrp_sched.wire.session_messages import Metadata


class Packet(msgspec.Struct, frozen=True):
    """One NNRP packet (wire digest 1.1). `metadata` is None for header-only messages."""

    message_type: MessageType
    metadata: Metadata | None = None
    body: bytes = b""
    session_id: int = 0
    frame_id: int = 0
    trace_id: int = 0
    flags: int = 0
    view_id: int = 0
    route_id: int = 0
