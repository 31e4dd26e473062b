"""The incremental reader: pieces, limits, and everything that cannot be a packet."""

import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import RemoteProtocolError
from nnrp_sched.wire import Packet, PacketReader, encode_packet
from nnrp_sched.wire.enums import ErrorCode, MessageType
from tests.support.wire_packets import SUPPORTED, legal_packets, sample

M = MessageType
STREAM = b"".join(encode_packet(sample(kind)) for kind in SUPPORTED)


def read(reader: PacketReader, *pieces: bytes) -> list[Packet]:
    """Every packet that comes out of the pieces."""
    found: list[Packet] = []
    for piece in pieces:
        reader.feed(piece)
        while (packet := reader.next_packet()) is not None:
            found.append(packet)
    return found


@pytest.mark.parametrize("kind", SUPPORTED, ids=lambda kind: kind.name)
def test_a_packet_cut_at_any_byte_is_awaited_and_reported_at_the_end_of_the_stream(
    kind: MessageType,
) -> None:
    data = encode_packet(sample(kind))
    for cut in range(1, len(data)):
        reader = PacketReader(1000)
        assert read(reader, data[:cut]) == []
        with pytest.raises(RemoteProtocolError, match="ended inside a packet"):
            reader.end()
        assert read(reader, data[cut:]) == [sample(kind)]
        reader.end()


@given(st.lists(st.sampled_from(SUPPORTED).flatmap(legal_packets), max_size=6), st.data())
def test_any_cutting_of_a_stream_gives_the_same_packets(
    sent: list[Packet], data: st.DataObject
) -> None:
    stream = b"".join(encode_packet(packet) for packet in sent)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(PacketReader(10_000), *pieces) == sent


def test_a_stream_read_byte_by_byte_gives_every_packet() -> None:
    pieces = [STREAM[place : place + 1] for place in range(len(STREAM))]
    assert read(PacketReader(1000), *pieces) == [sample(kind) for kind in SUPPORTED]


def header(
    magic: bytes = b"NNRP",
    major: int = 1,
    wire_format: int = 0,
    code: int = M.PING,
    size: int = 40,
    flags: int = 0,
    metadata_bytes: int = 0,
    body_bytes: int = 0,
) -> bytes:
    """A header with any of its checked fields wrong."""
    fields = (magic, major, wire_format, code, size, flags, metadata_bytes, body_bytes)
    return struct.pack("<4sBBBBIII20x", *fields)


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (
            header(magic=b"HTTP"),
            ErrorCode.MALFORMED_HEADER,
            "0x48, not 0x4e",
        ),
        (header(major=2), ErrorCode.UNSUPPORTED_VERSION, "major version 2"),
        (header(wire_format=1), ErrorCode.UNSUPPORTED_VERSION, "wire format 1"),
        (header(size=44), ErrorCode.MALFORMED_HEADER, "44 bytes"),
        (header(flags=0x40), ErrorCode.MALFORMED_HEADER, "flags"),
        (header(flags=0x8000_0000), ErrorCode.MALFORMED_HEADER, "flags"),
        (header(code=0x00), ErrorCode.MALFORMED_HEADER, "0x00 is unknown"),
        (header(code=0x4A), ErrorCode.MALFORMED_HEADER, "0x4a is unknown"),
        (header(code=0xFF), ErrorCode.MALFORMED_HEADER, "0xff is unknown"),
        (header(metadata_bytes=4), ErrorCode.MALFORMED_HEADER, "4 metadata bytes, not 0"),
        (header(code=M.CLOSE, body_bytes=961), ErrorCode.LIMIT_EXCEEDED, "1001 bytes"),
        (header(code=M.CLOSE, body_bytes=2**32 - 1), ErrorCode.LIMIT_EXCEEDED, "limit of 1000"),
        (header(code=M.CACHE_PUT, metadata_bytes=961), ErrorCode.LIMIT_EXCEEDED, "1001 bytes"),
    ],
)
def test_a_header_that_starts_no_packet_is_refused_before_its_body(
    data: bytes, code: ErrorCode, words: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=words) as raised:
        read(PacketReader(1000), data)
    assert raised.value.code == code


def test_a_packet_of_exactly_the_limit_is_taken() -> None:
    packet = Packet(M.CLOSE, None, bytes(960))
    assert read(PacketReader(1000), encode_packet(packet)) == [packet]


@pytest.mark.parametrize("beginning", [b"G", b"GET / HTTP/1.1\r\n\r\n", b"NNRQ", b"NNRP\x02"])
def test_another_protocol_is_known_by_its_first_bytes(beginning: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read(PacketReader(1000), beginning)


@pytest.mark.parametrize("beginning", [b"N", b"NNRP", b"NNRP\x01\x00"])
def test_the_beginning_of_a_packet_is_awaited(beginning: bytes) -> None:
    reader = PacketReader(1000)
    assert read(reader, beginning) == []
    assert reader.waiting_bytes == len(beginning)


@given(st.binary(max_size=400))
def test_random_bytes_raise_nothing_but_a_protocol_error(data: bytes) -> None:
    reader = PacketReader(300)
    try:
        read(reader, data)
    except RemoteProtocolError:
        return
    assert reader.waiting_bytes <= 300


def test_nothing_is_kept_after_the_last_packet_is_out() -> None:
    reader = PacketReader(2**20)
    large = encode_packet(Packet(M.CLOSE, None, bytes(2**19)))
    read(reader, large[:100], large[100:])
    assert reader.waiting_bytes == 0
    assert vars(reader)["_buffer"] == b""


def seconds_to_read(size: int, piece: int) -> float:
    """How long one packet of a size takes in pieces."""
    data = encode_packet(Packet(M.CLOSE, None, bytes(size)))
    pieces = [data[start : start + piece] for start in range(0, len(data), piece)]
    reader = PacketReader(2**30)
    start = time.perf_counter()
    assert len(read(reader, *pieces)) == 1
    return time.perf_counter() - start


def test_the_work_is_linear_in_the_bytes_however_they_are_cut() -> None:
    small = min(seconds_to_read(2**20, 512) for _ in range(3))
    large = min(seconds_to_read(2**24, 512) for _ in range(3))
    # 16 times the bytes; copying the gathered part again for every piece would make it 256 times.
    assert large < 80 * small


def test_many_small_packets_in_one_piece_cost_what_they_cost_alone() -> None:
    one = encode_packet(sample(M.CANCEL))
    reader = PacketReader(1000)
    half = len(one) // 2
    # Every piece starts inside a packet and ends inside one, with a thousand between.
    pieces = [one[:half], *[one[half:] + one * 1000 + one[:half]] * 20, one[half:]]
    start = time.perf_counter()
    assert len(read(reader, *pieces)) == 20 * 1001 + 1
    assert time.perf_counter() - start < 5
