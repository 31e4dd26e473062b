"""The packets of a Level 1 chat, written from the byte tables, for checks that must not share a
fault with the product: it imports nothing of it.

Every field that the profile leaves no choice about is checked as it is read.
"""

import struct
from dataclasses import dataclass
from typing import Any

HEADER = struct.Struct("<4sBBBBIIIIIHHQ")
HELLO = struct.Struct("<BBHIIIIIIHHHHIIHHHHIII")
HELLO_ACK = struct.Struct("<BBBxIIIIIIIIIIIHHHHHHIIIII")
OPEN = struct.Struct("<IHBBIIIHHIIIIQ")
OPEN_ACK = struct.Struct("<IHBBIIHHIIIIQIII")
SUBMIT = struct.Struct("<HHHHHHBBBxHHIIII4xQ4xBBBxIIIHxx")
PRELUDE = struct.Struct("<8I")
DESCRIPTOR = struct.Struct("<HBBIIHHII")
PARTIAL = struct.Struct("<QQQQII")
RESULT = struct.Struct("<HHHHHHHHHHII8x8xBBxxIHHIHxx")
CONTROL = struct.Struct("<QQHBBIQ")
CLOSE = struct.Struct("<HBBIQII")
CLOSE_ACK = struct.Struct("<BBHQI")

T_HELLO, T_HELLO_ACK, T_OPEN, T_OPEN_ACK, T_CLOSE, T_CLOSE_ACK = 1, 2, 7, 8, 9, 10
T_SUBMIT, T_RESULT, T_CANCEL, T_PARTIAL = 0x10, 0x12, 0x30, 0x38

SIZES = {
    T_HELLO_ACK: HELLO_ACK.size,
    T_OPEN_ACK: OPEN_ACK.size,
    T_CLOSE_ACK: CLOSE_ACK.size,
    T_RESULT: RESULT.size,
    T_PARTIAL: PARTIAL.size,
}
PROFILES, KINDS = 0x3, 0x73


@dataclass(frozen=True)
class Packet:
    """A packet of the server, its header checked."""

    kind: int
    session: int
    frame: int
    metadata: bytes
    body: bytes


def packet(
    kind: int, metadata: bytes, body: bytes = b"", session: int = 0, frame: int = 0
) -> bytes:
    """A packet of the client."""
    header = HEADER.pack(
        b"NNRP", 1, 0, kind, 40, 0, len(metadata), len(body), session, frame, 0, 0, 0
    )
    return header + metadata + body


def read_header(header: bytes) -> tuple[int, int]:
    """Check a header; the lengths of metadata and body."""
    magic, major, wire_format, kind, size, flags, metadata, body, *_ = HEADER.unpack(header)
    assert (magic, major, wire_format, size) == (b"NNRP", 1, 0, 40)
    assert flags == 0, "the profile needs no header flag"
    assert metadata == SIZES[kind], f"{metadata} bytes of metadata in message {kind:#x}"
    return metadata, body


def split(data: bytes) -> Packet:
    """A whole packet, taken apart."""
    metadata, body = read_header(data[:40])
    assert len(data) == 40 + metadata + body
    kind, session, frame = data[6], *struct.unpack_from("<II", data, 20)
    return Packet(kind, session, frame, data[40 : 40 + metadata], data[40 + metadata :])


# --- what the client sends ----------------------------------------------------------------------


def hello() -> bytes:
    """CLIENT_HELLO with the SDK's defaults."""
    fields = (1, 1, 1, PROFILES, KINDS, *[0] * 7, 1, *[0] * 3, 500, *[0] * 5)
    return packet(T_HELLO, HELLO.pack(*fields))


def session_open() -> bytes:
    """SESSION_OPEN with the SDK's defaults: token profile, in-flight 4, deadline 500 ms."""
    return packet(T_OPEN, OPEN.pack(0, 2, 1, 0, 0x1001, 3, 500, 4, 0, 30000, 0, 0, 0, 0))


def submit(session: int, frame: int, operation: int, document: bytes) -> bytes:
    """FRAME_SUBMIT of one typed document."""
    metadata = SUBMIT.pack(
        *(0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, operation, 0, 0, 0xFF, 0, 0, 0x10, 1)
    )
    return packet(T_SUBMIT, metadata, typed(document), session, frame)


def typed(document: bytes) -> bytes:
    """The one typed body that the profile allows."""
    size = len(document)
    return (
        PRELUDE.pack(0, 0, 24, size, 0, 0, 0, 0)
        + DESCRIPTOR.pack(0, 0x10, 0, 0, 0, 1, 0, 0, size)
        + document
    )


def cancel(session: int, frame: int, operation: int) -> bytes:
    """CANCEL by the user."""
    return packet(T_CANCEL, CONTROL.pack(operation, 1, 1, 1, 1, 0, 0), b"", session, frame)


def session_close(session: int, last_operation: int) -> bytes:
    """SESSION_CLOSE as the SDK sends it."""
    return packet(T_CLOSE, CLOSE.pack(1, 0, 0, 0, last_operation, 0, session), b"", session)


# --- what the server must have said -------------------------------------------------------------


def check_hello_ack(answer: Packet) -> None:
    """Version 1, format 0, no more than was offered, no body."""
    assert (answer.kind, answer.session, answer.frame, answer.body) == (T_HELLO_ACK, 0, 0, b"")
    fields = HELLO_ACK.unpack(answer.metadata)
    version, wire_format, auth_status, session, profiles, kinds = fields[:6]
    assert (version, wire_format, auth_status, session) == (1, 0, 0, 0)
    assert profiles and not profiles & ~PROFILES
    assert kinds & 0x10 and not kinds & ~KINDS
    assert fields[6:12] == (0,) * 6, "codecs, compressions, types and caches were not offered"


def check_open_ack(answer: Packet) -> int:
    """Opened, with credit; the session's id."""
    fields: tuple[Any, ...] = OPEN_ACK.unpack(answer.metadata)
    session, profile, _, status, schema, version, credit, in_flight = fields[:8]
    assert (answer.kind, answer.frame, answer.body) == (T_OPEN_ACK, 0, b"")
    assert session != 0
    assert answer.session == session
    assert (status, profile, schema, version) == (0, 2, 0x1001, 3)
    assert 0 < credit <= in_flight <= 4
    assert fields[10:12] == (0, 0), "no resume token and no extension"
    return int(session)


def check_partial(answer: Packet, session: int, frame: int, operation: int, sequence: int) -> bytes:
    """One event of the operation; its bare document."""
    assert (answer.kind, answer.session, answer.frame) == (T_PARTIAL, session, frame)
    fields = PARTIAL.unpack(answer.metadata)
    assert fields[:3] == (operation, sequence, 0)
    assert fields[4:] == (len(answer.body), 0)
    return answer.body


def check_result(answer: Packet, session: int, frame: int, status: int) -> bytes:
    """The terminal with one typed document; the document."""
    assert (answer.kind, answer.session, answer.frame) == (T_RESULT, session, frame)
    fields = RESULT.unpack(answer.metadata)
    assert fields[0] == status
    assert fields[1:6] == (0,) * 5, "result flags, sections, tiles and active profile are 0"
    assert fields[9:17] == (0,) * 8, "tiles, classes and reuse are not the profile's"
    assert fields[17:] == (0x10, 1)
    document = answer.body[56:]
    assert answer.body == typed(document)
    return document


def check_close_ack(answer: Packet, session: int) -> None:
    """Closed."""
    assert (answer.kind, answer.session, answer.frame, answer.body) == (
        T_CLOSE_ACK,
        session,
        0,
        b"",
    )
    assert CLOSE_ACK.unpack(answer.metadata)[0] == 2
