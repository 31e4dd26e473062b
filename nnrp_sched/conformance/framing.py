"""Packets as recipes want them, broken ones included (wire digest 3.2, 3.9 and 4.1)."""

import struct
from collections.abc import Sequence

from msgspec.structs import replace

from nnrp_sched.conformance.recipe import Framing
from nnrp_sched.wire import Capability, FrameSubmit, MessageType, Packet
from nnrp_sched.wire.typed_body import DESCRIPTOR, PRELUDE


def framed(submit: Packet, document: bytes, framing: Framing) -> Packet:
    """The FRAME_SUBMIT with this document in it, framed as told."""
    assert isinstance(submit.metadata, FrameSubmit)
    metadata = replace(
        submit.metadata,
        payload_kind_bitmap=framing.payload_kind,
        payload_frame_count=framing.frames,
    )
    return replace(submit, metadata=metadata, body=_body(document, framing))


def offer(session_id: int, tokens: Sequence[str]) -> Packet:
    """CAPABILITY_NEGOTIATION with these tokens."""
    names = sorted({token.encode("ascii") for token in tokens})
    body = b"".join(struct.pack("<H", len(name)) + name for name in names)
    capability = Capability(
        profile_id=0,
        count=len(names),
        cost_model=0,
        rank=0,
        limit_bytes=0,
        limit_units=0,
        body_bytes=len(body),
        flags=0,
    )
    return Packet(MessageType.CAPABILITY_NEGOTIATION, capability, body, session_id)


def _body(document: bytes, framing: Framing) -> bytes:
    trailing = framing.trailing.encode()
    if framing.bare:
        return document + trailing
    size = len(document)
    descriptors = b"".join(
        DESCRIPTOR.pack(
            framing.profile_id,
            framing.payload_kind,
            framing.descriptor_flags,
            framing.schema_id,
            framing.schema_version,
            framing.stream_semantics,
            0,
            number * size,
            size,
        )
        for number in range(framing.frames)
    )
    prelude = PRELUDE.pack(0, 0, len(descriptors), size * framing.frames, 0, 0, 0, 0)
    return prelude + descriptors + document * framing.frames + trailing
