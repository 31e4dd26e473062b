"""Bytes of a stream to packets, in whatever pieces they come."""

from nnrp_sched.errors import RemoteProtocolError
from nnrp_sched.wire.codec import (
    HEADER,
    HEADER_BYTES,
    KNOWN_FLAGS,
    PREFIX,
    RawPacket,
    decode_packet,
)
from nnrp_sched.wire.enums import ErrorCode
from nnrp_sched.wire.layouts import LAYOUTS
from nnrp_sched.wire.packet import Packet

_MAGIC_BYTES = 4
_UNKNOWN = -1
_ANY = -2


def _metadata_length(code: int) -> int:
    layout = LAYOUTS.get(code)
    if layout is None:
        return _UNKNOWN
    return layout.codec.size if layout.supported else _ANY


_METADATA_LENGTHS = {code: _metadata_length(code) for code in range(256)}


class PacketReader:
    """An incremental reader. Feed it, then ask for packets until there is none.

    Every length is checked against the limit before its bytes are awaited, so no more is buffered
    than one packet and the last piece fed. The work is linear in the bytes fed, however they are
    cut: a piece that completes its packets is read in place, a packet in several pieces is gathered
    once.
    """

    def __init__(self, max_packet_bytes: int) -> None:
        self._max_packet_bytes = max_packet_bytes
        self._buffer: bytes | bytearray = b""
        self._offset = 0
        self._needed = HEADER_BYTES

    @property
    def waiting_bytes(self) -> int:
        """Bytes fed and not yet given out."""
        return len(self._buffer) - self._offset

    def limit(self, max_packet_bytes: int) -> None:
        """Take larger or smaller packets from the next one on."""
        self._max_packet_bytes = max_packet_bytes

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        buffer = self._buffer
        if self._offset == len(buffer):
            self._buffer = data
        elif not isinstance(buffer, bytes):
            del buffer[: self._offset]
            buffer += data
        else:
            gathered = bytearray(memoryview(buffer)[self._offset :])
            gathered += data
            self._buffer = gathered
        self._offset = 0

    def next_raw(self) -> RawPacket | None:
        """The next packet with its header checked, None until more bytes are fed.

        Raises `RemoteProtocolError` at the first thing that cannot start or be a packet; the stream
        is then lost, because nothing tells where the next packet starts.
        """
        buffer = self._buffer
        offset = self._offset
        available = len(buffer) - offset
        if available < self._needed:
            if available == 0:
                # Lets go of what was read, which may have been large.
                self._buffer = b""
                self._offset = 0
            elif available < HEADER_BYTES:
                self._check_beginning()
            return None
        (
            prefix,
            code,
            header_bytes,
            flags,
            metadata_bytes,
            body_bytes,
            session_id,
            frame_id,
            view_id,
            route_id,
            trace_id,
        ) = HEADER.unpack_from(buffer, offset)
        if prefix != PREFIX or header_bytes != HEADER_BYTES or flags > KNOWN_FLAGS:
            raise _header_fault(prefix, header_bytes, flags)
        expected = _METADATA_LENGTHS[code]
        if metadata_bytes != expected and expected != _ANY:
            raise _metadata_fault(code, metadata_bytes, expected)
        body_start = offset + HEADER_BYTES + metadata_bytes
        end = body_start + body_bytes
        if end - offset > self._max_packet_bytes:
            raise RemoteProtocolError(
                f"a packet of {end - offset} bytes is above the limit of {self._max_packet_bytes}",
                code=ErrorCode.LIMIT_EXCEEDED,
            )
        if end > len(buffer):
            self._needed = end - offset
            return None
        self._needed = HEADER_BYTES
        self._offset = end
        if isinstance(buffer, bytes):
            region = buffer[offset + HEADER_BYTES : body_start]
            body = buffer[body_start:end]
        else:
            region = bytes(buffer[offset + HEADER_BYTES : body_start])
            body = bytes(memoryview(buffer)[body_start:end])
        return code, flags, session_id, frame_id, view_id, route_id, trace_id, region, body

    def next_packet(self) -> Packet | None:
        """The next packet, None until more bytes are fed. Raises `RemoteProtocolError`."""
        raw = self.next_raw()
        return None if raw is None else decode_packet(raw)

    def end(self) -> None:
        """Take the end of the stream. Raises `RemoteProtocolError` inside a packet."""
        waiting = self.waiting_bytes
        if waiting:
            in_header = waiting < HEADER_BYTES
            raise RemoteProtocolError(
                f"the stream ended inside a packet, {waiting} bytes after its start",
                code=ErrorCode.MALFORMED_HEADER if in_header else ErrorCode.MALFORMED_BODY,
            )

    def _check_beginning(self) -> None:
        """Tell a foreign protocol from its first bytes instead of waiting for forty."""
        beginning = bytes(self._buffer[self._offset : self._offset + len(PREFIX)])
        if not PREFIX.startswith(beginning):
            raise _header_fault(beginning, HEADER_BYTES, 0)


def _header_fault(prefix: bytes, header_bytes: int, flags: int) -> RemoteProtocolError:
    """What is wrong with a header, told by its first wrong byte.

    So the answer is the same whether the bytes came one by one or all at once.
    """
    wrong = next((place for place, byte in enumerate(prefix) if byte != PREFIX[place]), None)
    code = ErrorCode.MALFORMED_HEADER
    if wrong is None and header_bytes != HEADER_BYTES:
        message = f"a header of {header_bytes} bytes, not {HEADER_BYTES}"
    elif wrong is None:
        message = f"unknown header flags in {flags:#x}"
    elif wrong < _MAGIC_BYTES:
        found, wanted = prefix[wrong], PREFIX[wrong]
        message = f"byte {wrong} is {found:#04x}, not {wanted:#04x}: it does not start a packet"
    else:
        name = "major version" if wrong == _MAGIC_BYTES else "wire format"
        message = f"{name} {prefix[wrong]} is not spoken here"
        code = ErrorCode.UNSUPPORTED_VERSION
    return RemoteProtocolError(message, code=code)


def _metadata_fault(code: int, metadata_bytes: int, expected: int) -> RemoteProtocolError:
    if expected == _UNKNOWN:
        message = f"message type {code:#04x} is unknown"
    else:
        name = LAYOUTS[code].message_type.name
        message = f"{name}: {metadata_bytes} metadata bytes, not {expected}"
    return RemoteProtocolError(message, code=ErrorCode.MALFORMED_HEADER)
