"""Every layout: its size, its round trip, its reserved bytes, its values, its refusals to send."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import LocalProtocolError, RemoteProtocolError
from nnrp_sched.wire import Packet, encode_packet
from nnrp_sched.wire.codec import decode_packet
from nnrp_sched.wire.enums import ErrorCode, MessageType
from nnrp_sched.wire.layout import Body
from nnrp_sched.wire.layouts import LAYOUTS
from nnrp_sched.wire.reader import PacketReader
from nnrp_sched.wire.session_messages import TransportProbe
from tests.support.wire_machines import packets
from tests.support.wire_packets import (
    REFUSED,
    SUPPORTED,
    WIDTHS,
    changed,
    field_codes,
    field_names,
    legal_packets,
    raw_bytes,
    sample,
)

M = MessageType

METADATA_BYTES = {
    **{M.CLIENT_HELLO: 64, M.SERVER_HELLO_ACK: 80, M.SESSION_PATCH: 36, M.SESSION_PATCH_ACK: 48},
    **{M.CLOSE: 0, M.ERROR: 32, M.SESSION_OPEN: 48, M.SESSION_OPEN_ACK: 56, M.SESSION_CLOSE: 24},
    **{M.SESSION_CLOSE_ACK: 16, M.FRAME_SUBMIT: 72, M.FRAME_CANCEL: 0, M.RESULT_PUSH: 64},
    **{M.RESULT_DROP: 0, M.FLOW_UPDATE: 32, M.RESULT_HINT: 16, M.TRANSPORT_PROBE: 16},
    **{M.TRANSPORT_PROBE_ACK: 16, M.PING: 0, M.PONG: 0, M.CANCEL: 32, M.ABORT: 32},
    **{M.PRIORITY_UPDATE: 32, M.DEADLINE: 32, M.EXPIRE_AT: 32, M.SUPERSEDE: 32},
    **{M.BUDGET_UPDATE: 40, M.PROGRESS: 32, M.PARTIAL_RESULT: 40, M.BACKPRESSURE: 32},
    **{M.CREDIT_UPDATE: 32, M.CAPABILITY_NEGOTIATION: 32, M.DEGRADE_PROFILE: 32},
    **{M.ROUTE_HINT: 32, M.EXECUTION_HINT: 32, M.TRACE_CONTEXT: 32, M.RESULT_DROP_REASON: 32},
    **{M.ERROR_RECOVERABLE: 32, M.RETRY_AFTER: 32, M.SESSION_MIGRATE: 24},
    **{M.SESSION_MIGRATE_ACK: 24},
}
"""The table of wire digest 1.2."""

by_type = pytest.mark.parametrize("kind", SUPPORTED, ids=lambda kind: kind.name)


def test_the_sizes_are_those_of_the_digest() -> None:
    assert {kind: LAYOUTS[kind].codec.size for kind in SUPPORTED} == METADATA_BYTES


def test_every_registered_type_has_a_layout_and_no_other_code_has() -> None:
    assert set(LAYOUTS) == set(MessageType)
    assert len(REFUSED) == 10


@by_type
def test_each_field_of_a_struct_has_a_place_in_its_layout(kind: MessageType) -> None:
    assert len(field_names(LAYOUTS[kind])) == len(field_codes(LAYOUTS[kind]))


@pytest.mark.parametrize("kind", list(MessageType), ids=lambda kind: kind.name)
@given(data=st.data())
def test_any_legal_packet_comes_back_as_it_was(kind: MessageType, data: st.DataObject) -> None:
    packet = data.draw(legal_packets(kind))
    encoded = encode_packet(packet)
    assert packets(encoded) == [packet]
    assert encode_packet(packets(encoded)[0]) == encoded


@by_type
def test_the_sample_is_a_legal_packet(kind: MessageType) -> None:
    assert packets(encode_packet(sample(kind))) == [sample(kind)]


RESERVED = [
    (kind, place)
    for kind in SUPPORTED
    for place in range(LAYOUTS[kind].codec.size)
    if LAYOUTS[kind].reserved >> 8 * place & 0xFF
]


def test_the_reserved_bytes_are_those_of_the_digest() -> None:
    places: dict[MessageType, list[int]] = {}
    for kind, place in RESERVED:
        places.setdefault(kind, []).append(place)
    assert places == {
        M.SERVER_HELLO_ACK: [3],
        M.SESSION_PATCH: [2, 3],
        M.SESSION_PATCH_ACK: [18, 19],
        M.SESSION_OPEN: [22, 23],
        M.SESSION_CLOSE: [3],
        M.SESSION_CLOSE_ACK: [1, 2, 3],
        M.FRAME_SUBMIT: [15, *range(36, 40), *range(48, 52), 55, 70, 71],
        M.RESULT_PUSH: [10, 11, 18, 19, *range(28, 44), 46, 47, 62, 63],
        M.FLOW_UPDATE: [3, 10, 11],
        M.TRANSPORT_PROBE_ACK: [4, 5, 6, 7],
        M.CANCEL: list(range(24, 32)),
        M.ABORT: list(range(24, 32)),
        M.BACKPRESSURE: [28, 29, 30, 31],
        M.CREDIT_UPDATE: [28, 29, 30, 31],
        M.RESULT_DROP_REASON: list(range(24, 32)),
    }


@pytest.mark.parametrize(("kind", "place"), RESERVED)
def test_a_reserved_byte_that_is_set_breaks_the_packet(kind: MessageType, place: int) -> None:
    data = bytearray(encode_packet(sample(kind)))
    data[40 + place] = 1
    with pytest.raises(RemoteProtocolError, match="reserved") as raised:
        packets(bytes(data))
    assert raised.value.code == ErrorCode.MALFORMED_BODY


@by_type
def test_a_body_of_another_length_than_declared_breaks_the_packet(kind: MessageType) -> None:
    if LAYOUTS[kind].body is Body.FREE:
        assert packets(raw_bytes(changed(sample(kind), body=b"xy")))[0].body == b"xy"
        return
    longer = changed(sample(kind), body=sample(kind).body + b"x")
    with pytest.raises(RemoteProtocolError, match="body bytes"):
        packets(raw_bytes(longer))
    with pytest.raises(LocalProtocolError, match="body bytes"):
        encode_packet(longer)


@pytest.mark.parametrize(
    ("kind", "difference"),
    [
        (kind, difference)
        for kind, size in METADATA_BYTES.items()
        for difference in (-1, 1)
        if size + difference >= 0
    ],
)
def test_a_metadata_region_of_another_length_breaks_the_packet(
    kind: MessageType, difference: int
) -> None:
    size = METADATA_BYTES[kind] + difference
    header = bytearray(raw_bytes(sample(kind))[:40])
    header[12:20] = size.to_bytes(4, "little") + bytes(4)
    with pytest.raises(RemoteProtocolError, match="metadata bytes") as raised:
        packets(bytes(header) + bytes(size))
    assert raised.value.code == ErrorCode.MALFORMED_HEADER


def test_the_refused_types_are_measured_only() -> None:
    for kind in REFUSED:
        packet = sample(kind, body=b"anything")
        assert packets(encode_packet(packet)) == [packet]


FIELDS = [
    (kind, name, code)
    for kind in SUPPORTED
    for name, code in zip(field_names(LAYOUTS[kind]), field_codes(LAYOUTS[kind]), strict=True)
]


@pytest.mark.parametrize(("kind", "name", "code"), FIELDS)
def test_a_value_that_its_field_cannot_hold_is_not_sent(
    kind: MessageType, name: str, code: str
) -> None:
    limit = 2**15 if code == "h" else 2 ** WIDTHS[code]
    for value in (limit, -limit - 1):
        with pytest.raises(LocalProtocolError):
            encode_packet(changed(sample(kind), **{name: value}))


WRONG_VALUES: list[tuple[MessageType, dict[str, Any]]] = [
    (M.SERVER_HELLO_ACK, {"server_flags": 2}),
    (M.SESSION_PATCH, {"patch_mask": 0x80}),
    (M.SESSION_PATCH_ACK, {"ack_status": 3}),
    (M.SESSION_PATCH_ACK, {"reject_reason": 6}),
    (M.ERROR, {"scope": 3}),
    (M.ERROR, {"code": 0}),
    (M.ERROR, {"is_fatal": 2}),
    (M.SESSION_OPEN, {"priority": 3}),
    (M.SESSION_OPEN, {"session_flags": 0x10}),
    (M.SESSION_OPEN_ACK, {"status": 4}),
    (M.SESSION_OPEN_ACK, {"session_flags_ack": 0x20}),
    (M.SESSION_CLOSE, {"reason": 6}),
    (M.SESSION_CLOSE, {"in_flight_policy": 2}),
    (M.SESSION_CLOSE_ACK, {"status": 4}),
    (M.FRAME_SUBMIT, {"operation_id": 0}),
    (M.FRAME_SUBMIT, {"frame_class": 4}),
    (M.FRAME_SUBMIT, {"submit_mode": 3}),
    (M.FRAME_SUBMIT, {"budget_policy": 0x10}),
    (M.FRAME_SUBMIT, {"loss_tolerance": 4}),
    (M.FRAME_SUBMIT, {"payload_kind_bitmap": 0x80}),
    (M.FRAME_SUBMIT, {"object_ref_mask": 1}),
    (M.FRAME_SUBMIT, {"src_w": 1}),
    (M.FRAME_SUBMIT, {"tile_index_bytes": 1}),
    (M.RESULT_PUSH, {"result_flags": 8}),
    (M.RESULT_PUSH, {"result_class": 4}),
    (M.RESULT_PUSH, {"applied_budget_policy": 0x10}),
    (M.RESULT_PUSH, {"payload_kind_bitmap": 0x80}),
    (M.FLOW_UPDATE, {"scope": 3}),
    (M.FLOW_UPDATE, {"reason": 5}),
    (M.FLOW_UPDATE, {"level": 4}),
    (M.FLOW_UPDATE, {"flags": 0x10}),
    (M.FLOW_UPDATE, {"retry_after_ms": 1}),
    (M.FLOW_UPDATE, {"scope": 0, "session_credit": 0}),
    (M.FLOW_UPDATE, {"scope": 0, "session_id": 0}),
    (M.FLOW_UPDATE, {"session_id": 0}),
    (M.FLOW_UPDATE, {"connection_credit": 1}),
    (M.FLOW_UPDATE, {"operation_id": 1}),
    (M.FLOW_UPDATE, {"scope": 2, "session_credit": 0}),
    (M.FLOW_UPDATE, {"scope": 2, "operation_id": 1}),
    (M.RESULT_HINT, {"policy": 5}),
    (M.RESULT_HINT, {"congestion": 4}),
    (M.RESULT_HINT, {"reason": 5}),
    (M.CANCEL, {"reason": 9}),
    (M.CANCEL, {"flags": 4}),
    (M.ABORT, {"reason": 9}),
    (M.ABORT, {"flags": 4}),
    (M.PRIORITY_UPDATE, {"operation_id": 0}),
    (M.PRIORITY_UPDATE, {"priority_class": 3}),
    (M.PRIORITY_UPDATE, {"flags": 4}),
    (M.DEADLINE, {"deadline_unix_ms": 0}),
    (M.DEADLINE, {"operation_id": 0}),
    (M.EXPIRE_AT, {"deadline_unix_ms": 0}),
    (M.EXPIRE_AT, {"flags": 4}),
    (M.SUPERSEDE, {"old_operation_id": 0}),
    (M.SUPERSEDE, {"new_operation_id": 0}),
    (M.SUPERSEDE, {"drop_reason": 0}),
    (M.SUPERSEDE, {"flags": 2}),
    (M.BUDGET_UPDATE, {"operation_id": 0}),
    (M.BUDGET_UPDATE, {"flags": 4}),
    (M.BUDGET_UPDATE, {"flags": 0}),
    (M.BUDGET_UPDATE, {"flags": 3}),
    (M.SUPERSEDE, {"new_operation_id": 901}),
    (M.PROGRESS, {"operation_id": 0}),
    (M.PROGRESS, {"stage": 0}),
    (M.PROGRESS, {"stage": 12}),
    (M.PROGRESS, {"percent_x100": 10_001}),
    (M.PARTIAL_RESULT, {"operation_id": 0}),
    (M.PARTIAL_RESULT, {"result_sequence": 0}),
    (M.PARTIAL_RESULT, {"flags": 4}),
    (M.PARTIAL_RESULT, {"flags": 2}),
    (M.PARTIAL_RESULT, {"body": b"", "body_bytes": 0}),
    (M.BACKPRESSURE, {"level": 0}),
    (M.BACKPRESSURE, {"flags": 4}),
    (M.BACKPRESSURE, {"flags": 3}),
    (M.BACKPRESSURE, {"flags": 2}),
    (M.CREDIT_UPDATE, {"flags": 4}),
    (M.CREDIT_UPDATE, {"flags": 2}),
    (M.RETRY_AFTER, {"flags": 4}),
    (M.RETRY_AFTER, {"flags": 2}),
    (M.CAPABILITY_NEGOTIATION, {"flags": 4}),
    (M.DEGRADE_PROFILE, {"flags": 4}),
    (M.ROUTE_HINT, {"operation_id": 0}),
    (M.ROUTE_HINT, {"flags": 4}),
    (M.EXECUTION_HINT, {"operation_id": 0}),
    (M.TRACE_CONTEXT, {"flags": 4}),
    (M.TRACE_CONTEXT, {"trace_id": 1}),
    (M.RESULT_DROP_REASON, {"operation_id": 0}),
    (M.RESULT_DROP_REASON, {"drop_reason": 0}),
    (M.RESULT_DROP_REASON, {"flags": 4}),
    (M.ERROR_RECOVERABLE, {"code": 0}),
    (M.ERROR_RECOVERABLE, {"scope": 3}),
    (M.ERROR_RECOVERABLE, {"flags": 4}),
]


def wrong_packet(kind: MessageType, changes: dict[str, Any]) -> Packet:
    """The sample with the values changed; for TRACE_CONTEXT the header names another trace."""
    if kind is M.TRACE_CONTEXT and "trace_id" in changes:
        return changed(Packet(kind, sample(kind).metadata, b"", 7, trace_id=9))
    return changed(sample(kind), **changes)


@pytest.mark.parametrize(("kind", "changes"), WRONG_VALUES)
def test_a_value_outside_its_registry_is_named_and_not_sent(
    kind: MessageType, changes: dict[str, Any]
) -> None:
    packet = wrong_packet(kind, changes)
    (read,) = packets(raw_bytes(packet))
    assert LAYOUTS[kind].value_fault(read)
    with pytest.raises(LocalProtocolError):
        encode_packet(packet)


def test_the_metadata_of_another_type_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="TransportProbe is not its metadata"):
        encode_packet(Packet(M.CANCEL, TransportProbe(1, 0, 0)))
    with pytest.raises(LocalProtocolError, match="NoneType is not its metadata"):
        encode_packet(Packet(M.CANCEL))


def test_unknown_header_flags_are_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="flags"):
        encode_packet(Packet(M.PING, flags=0x40))


def test_a_packet_above_the_sdk_s_ceiling_is_not_sent() -> None:
    body = bytes(64 * 1024 * 1024)
    with pytest.raises(LocalProtocolError) as raised:
        encode_packet(Packet(M.CLOSE, None, body))
    assert raised.value.code == ErrorCode.LIMIT_EXCEEDED


def test_a_raw_packet_and_a_packet_say_the_same() -> None:
    packet = sample(M.CANCEL, flags=1)
    reader = PacketReader(1000)
    reader.feed(encode_packet(packet))
    raw = reader.next_raw()
    assert raw is not None
    assert decode_packet(raw) == packet
