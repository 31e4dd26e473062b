"""The typed body of FRAME_SUBMIT and RESULT_PUSH: prelude, descriptor, one JSON document.

Wire digest 3.2, 4.1 (R1 to R5) and 4.4 (T1 to T3).
"""

import struct

from nnrp_sched.errors import RemoteProtocolError
from nnrp_sched.wire.enums import ErrorCode, ErrorScope, PayloadKind

PRELUDE = struct.Struct("<8I")
"""Lengths of inline objects, object references, descriptors, frames, extension descriptors and
extension payloads; then body flags and a reserved word, both 0."""

DESCRIPTOR = struct.Struct("<HBBIIHHII")
"""Profile id, payload kind, flags, schema id, schema version, stream semantics, reserved, offset,
length."""

SNAPSHOT = 1
"""The only stream semantics of the profile (wire digest 4.1, R2)."""

_FRAMING_BYTES = PRELUDE.size + DESCRIPTOR.size
_BODY = struct.Struct("<8IHBBIIHHII")
_EMPTY_PRELUDE = bytes(PRELUDE.size)


def encode_document(document: bytes) -> bytes:
    """The body that carries one JSON document as a structured event, snapshot, unbound schema."""
    size = len(document)
    framing = _BODY.pack(
        *(0, 0, DESCRIPTOR.size, size, 0, 0, 0, 0),
        *(0, PayloadKind.STRUCTURED_EVENT, 0, 0, 0, SNAPSHOT, 0, 0, size),
    )
    return framing + document


def decode_document(
    payload_kind_bitmap: int, payload_frame_count: int, body: bytes
) -> bytes | None:
    """The JSON document of a typed body; None for an empty success, in both its spellings (T3).

    Raises RemoteProtocolError (malformed_body, frame scope) that names the first rule broken. The
    document itself is not looked into: UTF-8 and JSON are the profile's business.
    """
    if payload_frame_count == 0 and payload_kind_bitmap == 0:
        if body and body != _EMPTY_PRELUDE:
            raise _fault(f"{len(body)} body bytes where the metadata declares no payload")
        return None
    if payload_frame_count != 1:
        raise _fault(f"payload_frame_count is {payload_frame_count}, the profile sends 1")
    if payload_kind_bitmap != PayloadKind.STRUCTURED_EVENT:
        raise _fault(f"payload_kind_bitmap is {payload_kind_bitmap:#x}, the profile sends 0x10")
    if len(body) < _FRAMING_BYTES:
        raise _fault(f"{len(body)} bytes are too few for prelude and descriptor")
    fields = _BODY.unpack_from(body)
    size = len(body) - _FRAMING_BYTES
    expected = (
        *(0, 0, DESCRIPTOR.size, size, 0, 0, 0, 0),
        *(0, PayloadKind.STRUCTURED_EVENT, 0, 0, 0, SNAPSHOT, 0, 0, size),
    )
    if fields != expected:
        raise _fault(_first_difference(fields, expected))
    return body[_FRAMING_BYTES:]


_FIELD_NAMES = (
    "inline object length",
    "object reference length",
    "descriptor region length",
    "frame region length",
    "extension descriptor length",
    "extension payload length",
    "body flags",
    "reserved word of the prelude",
    "descriptor profile_id",
    "descriptor payload_kind",
    "descriptor flags",
    "descriptor schema_id",
    "descriptor schema_version",
    "descriptor stream_semantics",
    "reserved word of the descriptor",
    "descriptor offset",
    "descriptor length",
)


def _first_difference(fields: tuple[int, ...], expected: tuple[int, ...]) -> str:
    name, found, wanted = next(
        (name, found, wanted)
        for name, found, wanted in zip(_FIELD_NAMES, fields, expected, strict=True)
        if found != wanted
    )
    return f"{name} is {found}, not {wanted}"


def _fault(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(message, code=ErrorCode.MALFORMED_BODY, scope=ErrorScope.FRAME)
