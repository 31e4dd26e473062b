"""Packets to bytes and bytes to packets (wire digest 1.1)."""

import struct

from nnrp_sched.errors import LocalProtocolError, RemoteProtocolError
from nnrp_sched.wire.enums import ErrorCode, MessageType
from nnrp_sched.wire.layouts import LAYOUTS
from nnrp_sched.wire.packet import Packet

HEADER = struct.Struct("<6sBBIIIIIHHQ")
"""Magic with version and wire format, type, header length, flags, metadata length, body length,
session, frame, view, route, trace."""

HEADER_BYTES = 40
PREFIX = b"NNRP\x01\x00"
"""Magic, major version 1, wire format 0: how every packet starts."""

KNOWN_FLAGS = 0x3F
PACKET_CEILING = 64 * 1024 * 1024
"""The SDK's limit on a whole packet; a larger one ends the connection at the peer."""

RawPacket = tuple[int, int, int, int, int, int, int, bytes, bytes]
"""Type, flags, session, frame, view, route, trace, metadata region, body: header checked only."""


def encode_packet(packet: Packet) -> bytes:
    """A packet's bytes.

    Raises `LocalProtocolError` for a packet that no peer may be sent: the wrong metadata, a value
    outside its field or its registry, a body of another length than declared.
    """
    layout = LAYOUTS[packet.message_type]
    metadata = packet.metadata
    if type(metadata) is not (layout.metadata_type or type(None)):
        raise _refuse(packet, f"{type(metadata).__name__} is not its metadata")
    expected = layout.expected_body_bytes(metadata)
    if expected is not None and expected != len(packet.body):
        raise _refuse(packet, f"{len(packet.body)} body bytes, the metadata says {expected}")
    if packet.flags & ~KNOWN_FLAGS:
        raise _refuse(packet, f"flags {packet.flags:#x}")
    fault = layout.value_fault(packet)
    if fault is not None:
        raise _refuse(packet, fault)
    try:
        region = layout.pack(metadata)
        header = HEADER.pack(
            PREFIX,
            packet.message_type,
            HEADER_BYTES,
            packet.flags,
            len(region),
            len(packet.body),
            packet.session_id,
            packet.frame_id,
            packet.view_id,
            packet.route_id,
            packet.trace_id,
        )
    except struct.error as error:
        raise _refuse(packet, str(error)) from error
    if HEADER_BYTES + len(region) + len(packet.body) > PACKET_CEILING:
        raise _refuse(packet, f"larger than {PACKET_CEILING} bytes", ErrorCode.LIMIT_EXCEEDED)
    return header + region + packet.body


def decode_packet(raw: RawPacket) -> Packet:
    """The packet of a raw one.

    Raises `RemoteProtocolError` for reserved bits and for a body of another length than declared;
    the values themselves are the layout's `value_fault`.
    """
    code, flags, session_id, frame_id, view_id, route_id, trace_id, region, body = raw
    layout = LAYOUTS[code]
    if layout.reserved_bits_set(region):
        raise RemoteProtocolError(
            f"{layout.message_type.name}: reserved bytes are not zero",
            code=ErrorCode.MALFORMED_BODY,
        )
    metadata = layout.unpack(region)
    expected = layout.expected_body_bytes(metadata)
    if expected is not None and expected != len(body):
        raise RemoteProtocolError(
            f"{layout.message_type.name}: {len(body)} body bytes, its metadata says {expected}",
            code=ErrorCode.MALFORMED_BODY,
        )
    return Packet(
        layout.message_type,
        metadata,
        body,
        session_id,
        frame_id,
        trace_id,
        flags,
        view_id,
        route_id,
    )


def _refuse(
    packet: Packet, reason: str, code: ErrorCode = ErrorCode.MALFORMED_BODY
) -> LocalProtocolError:
    name = MessageType(packet.message_type).name
    return LocalProtocolError(f"{name} cannot be sent: {reason}", code=code)
