"""The typed body of submits and results (wire digest 3.2, 4.1, 4.4)."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import RemoteProtocolError
from nnrp_sched.wire import decode_document, encode_document
from nnrp_sched.wire.enums import ErrorCode, ErrorScope

DOCUMENT = b'{"a":1}'
BODY = encode_document(DOCUMENT)


@given(st.binary(max_size=300))
def test_a_document_comes_back(document: bytes) -> None:
    assert decode_document(0x10, 1, encode_document(document)) == document


def test_both_spellings_of_an_empty_success_are_understood() -> None:
    assert decode_document(0, 0, b"") is None
    assert decode_document(0, 0, bytes(32)) is None


@pytest.mark.parametrize("body", [b"{}", bytes(31), bytes(33), b"\1" + bytes(31), BODY])
def test_a_body_without_a_declared_payload_is_a_fault(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="declares no payload"):
        decode_document(0, 0, body)


@pytest.mark.parametrize(
    ("bitmap", "count", "words"),
    [
        (0x10, 0, "payload_frame_count is 0"),
        (0x10, 2, "payload_frame_count is 2"),
        (0x00, 1, "payload_kind_bitmap is 0x0"),
        (0x02, 1, "payload_kind_bitmap is 0x2"),
        (0x30, 1, "payload_kind_bitmap is 0x30"),
    ],
)
def test_a_wrong_declaration_is_a_fault(bitmap: int, count: int, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        decode_document(bitmap, count, BODY)


@pytest.mark.parametrize("length", range(len(BODY)))
def test_a_body_cut_anywhere_is_a_fault(length: int) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        decode_document(0x10, 1, BODY[:length])
    assert (raised.value.code, raised.value.scope) == (ErrorCode.MALFORMED_BODY, ErrorScope.FRAME)


FIELDS = {
    **{"inline object": (0, "I"), "object reference": (4, "I"), "descriptor region": (8, "I")},
    **{"frame region": (12, "I"), "extension descriptor": (16, "I")},
    **{"extension payload": (20, "I"), "body flags": (24, "I"), "reserved word": (28, "I")},
    **{"profile_id": (32, "H"), "payload_kind": (34, "B"), "descriptor flags": (35, "B")},
    **{"schema_id": (36, "I"), "schema_version": (40, "I"), "stream_semantics": (44, "H")},
    **{"reserved": (46, "H"), "offset": (48, "I"), "descriptor length": (52, "I")},
}


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_prelude_and_descriptor_has_one_right_value(name: str) -> None:
    place, code = FIELDS[name]
    body = bytearray(BODY)
    (value,) = struct.unpack_from("<" + code, body, place)
    struct.pack_into("<" + code, body, place, value + 1)
    with pytest.raises(RemoteProtocolError, match=name):
        decode_document(0x10, 1, bytes(body))


@pytest.mark.parametrize("extra", [b"x", b"{}"])
def test_bytes_after_the_document_are_a_fault(extra: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="frame region length"):
        decode_document(0x10, 1, BODY + extra)
