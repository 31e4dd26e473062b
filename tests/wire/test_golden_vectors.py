"""The layouts against the golden vectors of nnrp-conformance, and the digest's worked bytes."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from nnrp_sched.wire import Packet, encode_document, encode_packet
from nnrp_sched.wire.control_enums import FlowScope
from nnrp_sched.wire.enums import HeaderFlag, MessageType, SessionErrorCode
from nnrp_sched.wire.handshake import SDK_HELLO, sdk_session_open
from nnrp_sched.wire.layouts import LAYOUTS
from nnrp_sched.wire.operation_messages import (
    ControlRequest,
    FrameSubmit,
    PartialResult,
    ResultDropReason,
    ResultPush,
)
from nnrp_sched.wire.session_messages import (
    FlowUpdate,
    SessionClose,
    SessionCloseAck,
    SessionOpen,
    SessionOpenAck,
)
from nnrp_sched.wire.typed_body import DESCRIPTOR, PRELUDE
from tests.support.wire_machines import packets

DATA = Path(__file__).parent.parent / "data" / "nnrp-conformance"
M = MessageType


def cases() -> dict[str, dict[str, bytes]]:
    """Every golden case that holds bytes."""
    found: dict[str, dict[str, bytes]] = {}
    for path in DATA.glob("*-core.json"):
        for case in json.loads(path.read_text())["cases"]:
            hexes = {
                name: bytes.fromhex(value)
                for name, value in case.get("parameters", {}).items()
                if name.endswith("_hex")
            }
            if hexes:
                found[case["id"]] = hexes
    return found


def vectors(recipe_type: str) -> list[dict[str, Any]]:
    """Every semantic vector of a recipe type."""
    return [
        vector
        for path in DATA.glob("*semantic-vectors.json")
        for vector in json.loads(path.read_text())["vectors"]
        if vector["recipe_type"] == recipe_type
    ]


METADATA_CASES = {
    "l0.control.client_hello.golden": M.CLIENT_HELLO,
    "l0.control.session_patch_ack.golden": M.SESSION_PATCH_ACK,
    "l0.frame_submit.metadata.golden": M.FRAME_SUBMIT,
    "l0.result_push.metadata.golden": M.RESULT_PUSH,
}
PACKET_CASES = {
    "l0.flow_update.packet.golden": M.FLOW_UPDATE,
    "l0.result_hint.packet.golden": M.RESULT_HINT,
}
OTHER_CASES = {
    "l0.header.fixed_shape.golden",
    "l0.body_region.prelude.golden",
    "l0.typed_payload.descriptor.current.golden",
}
NOT_APPLICABLE = {
    # The 16-byte descriptor of older revisions, not valid on preview4 (wire digest 6-15).
    "l0.typed_payload.descriptor.golden",
    "l0.typed_payload.frame_regions.golden",
    # Cache-backed object references, which this project does not use.
    "l0.object_reference.block.golden",
}


def test_every_golden_case_is_either_checked_here_or_named_as_not_applicable() -> None:
    assert set(cases()) == {*METADATA_CASES, *PACKET_CASES, *OTHER_CASES, *NOT_APPLICABLE}


@pytest.mark.parametrize(("case", "kind"), METADATA_CASES.items())
def test_golden_metadata_comes_back_byte_for_byte(case: str, kind: MessageType) -> None:
    region = cases()[case]["metadata_hex"]
    layout = LAYOUTS[kind]
    assert not layout.reserved_bits_set(region)
    assert layout.pack(layout.unpack(region)) == region


@pytest.mark.parametrize(("case", "kind"), PACKET_CASES.items())
def test_golden_packets_come_back_byte_for_byte(case: str, kind: MessageType) -> None:
    data = cases()[case]["packet_hex"]
    (packet,) = packets(data)
    assert packet.message_type is kind
    assert encode_packet(packet) == data


def test_the_golden_header_is_read_field_by_field() -> None:
    header = cases()["l0.header.fixed_shape.golden"]["header_hex"]
    region, body = bytes(48), bytes(4096)
    # Its lengths belong to no submit of this layout, so only the fields are compared.
    fields = struct.unpack("<4sBBBBIIIIIHHQ", header)
    magic, major, wire_format, code, size, flags, metadata_bytes, body_bytes, *ids = fields
    assert (magic, major, wire_format, code, size) == (b"NNRP", 1, 0, M.FRAME_SUBMIT, 40)
    assert (metadata_bytes, body_bytes) == (len(region), len(body))
    session_id, frame_id, view_id, route_id, trace_id = ids
    ping = Packet(M.PING, None, b"", session_id, frame_id, trace_id, flags, view_id, route_id)
    ours = encode_packet(ping)
    assert ours[8:12] + ours[20:] == header[8:12] + header[20:]
    assert packets(ours) == [ping]


def test_the_header_vector_with_every_field_set_keeps_every_field() -> None:
    (vector,) = vectors("header")
    flags = sum(HeaderFlag[name.upper()] for name in vector["flags"])
    packet = Packet(
        M.PONG,
        None,
        b"",
        vector["session_id"],
        vector["frame_id"],
        vector["trace_id"],
        flags,
        vector["view_id"],
        vector["route_id"],
    )
    assert packets(encode_packet(packet)) == [packet]


def test_the_golden_prelude_and_descriptor_come_back() -> None:
    prelude = cases()["l0.body_region.prelude.golden"]["metadata_hex"]
    descriptor = cases()["l0.typed_payload.descriptor.current.golden"]["descriptor_hex"]
    assert PRELUDE.pack(*PRELUDE.unpack(prelude)) == prelude
    assert DESCRIPTOR.unpack(descriptor) == (2, 2, 2, 0x1001, 3, 2, 0, 8, 24)
    assert DESCRIPTOR.pack(*DESCRIPTOR.unpack(descriptor)) == descriptor


# --- semantic vectors ---------------------------------------------------------------------------

PRIORITIES = {"interactive": 0, "balanced": 1, "background": 2}
STATUSES = {"opened": 0, "rejected": 1, "resumed": 3}


@pytest.mark.parametrize(
    "vector", vectors("session_open_metadata"), ids=lambda vector: vector["name"]
)
def test_session_open_vectors_fit_the_layout(vector: dict[str, Any]) -> None:
    lengths = [
        vector[name] for name in ("resume_token_bytes", "auth_bytes", "session_extension_bytes")
    ]
    metadata = SessionOpen(
        vector["requested_session_id"],
        vector["profile_id"],
        PRIORITIES[vector["priority_class"]],
        vector["session_flags"],
        vector["schema_id"],
        vector["schema_version"],
        vector["default_deadline_ms"],
        vector["max_in_flight_operations"],
        vector["lease_ttl_hint_ms"],
        lengths[0],
        lengths[1],
        lengths[2],
        vector["client_session_tag"],
    )
    packet = Packet(M.SESSION_OPEN, metadata, bytes(sum(lengths)))
    assert packets(encode_packet(packet)) == [packet]


@pytest.mark.parametrize(
    "vector", vectors("session_open_ack_metadata"), ids=lambda vector: vector["name"]
)
def test_session_open_ack_vectors_fit_the_layout(vector: dict[str, Any]) -> None:
    metadata = SessionOpenAck(
        session_id=vector["session_id"],
        accepted_profile=vector["accepted_profile_id"],
        accepted_priority=PRIORITIES[vector["accepted_priority_class"]],
        status=STATUSES[vector["session_status"]],
        schema_id=vector["schema_id"],
        schema_version=vector["schema_version"],
        granted_operation_credit=vector["granted_operation_credit"],
        max_in_flight=vector["max_in_flight_operations"],
        lease_ttl_ms=vector["lease_ttl_ms"],
        resume_window_ms=vector["resume_window_ms"],
        resume_token_bytes=vector["resume_token_bytes"],
        session_extension_bytes=vector["session_extension_bytes"],
        server_session_tag=vector["server_session_tag"],
        route_scope_id=vector["route_scope_id"],
        session_error_code=vector["session_error_code"],
        session_flags_ack=vector["session_flags_ack"],
    )
    body = bytes(vector["resume_token_bytes"] + vector["session_extension_bytes"])
    packet = Packet(M.SESSION_OPEN_ACK, metadata, body, vector["session_id"])
    assert packets(encode_packet(packet)) == [packet]
    if vector["session_status"] == "rejected":
        assert vector["session_error_code"] == SessionErrorCode.RESUME_REJECTED


def test_session_close_vectors_fit_the_layouts() -> None:
    (close,) = vectors("session_close_metadata")
    (ack,) = vectors("session_close_ack_metadata")
    sent = [
        Packet(
            M.SESSION_CLOSE,
            SessionClose(1, 0, close["drain_timeout_ms"], 99, 0, close["session_close_tag"]),
            session_id=42,
        ),
        Packet(M.SESSION_CLOSE_ACK, SessionCloseAck(1, ack["last_operation_id"], 0), session_id=42),
    ]
    assert packets(b"".join(encode_packet(packet) for packet in sent)) == sent


@pytest.mark.parametrize("vector", vectors("flow_update_packet"), ids=lambda vector: vector["name"])
def test_flow_update_vectors_are_legal_and_come_back(vector: dict[str, Any]) -> None:
    reasons = {"grant": 0, "pause": 2, "congestion": 4}
    flag_bits = {"credit_valid": 1, "retry_after_valid": 2, "drain_in_flight_only": 8}
    metadata = FlowUpdate(
        FlowScope[vector["scope_kind"].upper()],
        reasons[vector["update_reason"]],
        {"soft": 1, "hard": 2}[vector["backpressure_level"]],
        vector["connection_credit"],
        vector["session_credit"],
        vector["operation_credit"],
        vector["operation_id"],
        vector["retry_after_ms"],
        vector["credit_epoch"],
        sum(flag_bits[name] for name in vector["flow_update_flags"]),
    )
    packet = Packet(
        M.FLOW_UPDATE,
        metadata,
        session_id=vector["session_id"],
        trace_id=vector["trace_id"],
        route_id=vector["route_id"],
    )
    assert packets(encode_packet(packet)) == [packet]


# --- worked bytes (wire digest 4.9) and what the SDK sends ---------------------------------------

ENVELOPE = (
    b'{"schema_version":"openai-compatible/1","operation":"chat.completions.create",'
    b'"body":{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}}'
)


def header_hex(code: str, metadata_bytes: str, body_bytes: str, session: str = "07") -> str:
    """A header of frame 1 as the digest prints it."""
    return (
        f"4e4e52500100{code}2800000000{metadata_bytes}000000{body_bytes}000000"
        f"{session}00000001000000" + "00" * 12
    )


def typed_hex(length: str) -> str:
    """Prelude and descriptor of a document as the digest prints them."""
    return (
        "00" * 8 + f"18000000{length}000000" + "00" * 16
    ) + f"00001000{'00' * 8}0100000000000000{length}000000"


WORKED = {
    "FRAME_SUBMIT": (
        Packet(M.FRAME_SUBMIT, FrameSubmit(operation_id=901), encode_document(ENVELOPE), 7, 1),
        header_hex("10", "48", "d5")
        + ("00" * 14 + "01" + "00" * 25 + "8503000000000000" + "00" * 6 + "ff" + "00" * 9)
        + "1000000001000000"
        + typed_hex("9d")
        + ENVELOPE.hex(),
    ),
    "PARTIAL_RESULT": (
        Packet(
            M.PARTIAL_RESULT,
            PartialResult(901, 1, 0, 1, 50, 0),
            b'{"type":"response.output_text.delta","delta":"he"}',
            7,
            1,
        ),
        header_hex("38", "28", "32")
        + ("85030000000000000100000000000000" + "00" * 8 + "01000000000000003200000000000000")
        + b'{"type":"response.output_text.delta","delta":"he"}'.hex(),
    ),
    "RESULT_PUSH": (
        Packet(
            M.RESULT_PUSH,
            ResultPush(200, payload_kind_bitmap=0x10, payload_frame_count=1),
            encode_document(b'{"type":"response.completed"}'),
            7,
            1,
        ),
        header_hex("12", "40", "55")
        + ("c800" + "00" * 54 + "1000000001000000")
        + typed_hex("1d")
        + b'{"type":"response.completed"}'.hex(),
    ),
    "RESULT_PUSH, empty": (
        Packet(M.RESULT_PUSH, ResultPush(200), b"", 7, 1),
        header_hex("12", "40", "00") + "c800" + "00" * 62,
    ),
    "CANCEL": (
        Packet(M.CANCEL, ControlRequest(901, 901, 1, 1, 1, 0), b"", 1, 1),
        header_hex("30", "20", "00", "01")
        + "85030000000000008503000000000000"
        + "01000101"
        + "00" * 12,
    ),
    "RESULT_DROP_REASON": (
        Packet(M.RESULT_DROP_REASON, ResultDropReason(901, 1, 3, 2, 1, 0), b"", 1, 1),
        header_hex("40", "20", "00", "01")
        + "85030000000000000100000000000000"
        + "03000201"
        + "00" * 12,
    ),
    "SDK CLIENT_HELLO": (
        Packet(M.CLIENT_HELLO, SDK_HELLO),
        "4e4e5250010001280000000040000000" + "00" * 24
        # Versions, wire format, profiles, payload kinds; lanes 1; latency budget 500.
        + ("010101000300000073000000" + "00" * 22 + "0100" + "00" * 10 + "f401" + "00" * 16),
    ),
    "SDK SESSION_OPEN": (
        Packet(
            M.SESSION_OPEN, sdk_session_open(priority=1, max_in_flight=4, requested_session_id=0)
        ),
        "4e4e5250010007280000000030000000" + "00" * 24
        + "00000000" + "0200" + "01" + "00" + "01100000" + "03000000" + "f4010000" + "0400" + "0000"
        + "30750000" + "00" * 20,
    ),
    "SDK SESSION_CLOSE": (
        Packet(M.SESSION_CLOSE, SessionClose(1, 0, 0, 901, 0, 1), session_id=1),
        "4e4e525001000928000000001800000000000000" + "01000000" + "00" * 16
        + "0100000000000000" + "8503000000000000" + "0000000001000000",
    ),
    "SDK SESSION_CLOSE_ACK": (
        Packet(M.SESSION_CLOSE_ACK, SessionCloseAck(2, 901, 0), session_id=1),
        "4e4e525001000a28000000001000000000000000" + "01000000" + "00" * 16
        + "02000000" + "8503000000000000" + "00000000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKED)
def test_worked_bytes_are_written_and_read_exactly(name: str) -> None:
    packet, expected = WORKED[name]
    assert encode_packet(packet).hex() == expected
    assert packets(bytes.fromhex(expected)) == [packet]


def test_the_wire_suite_s_submit_is_367_bytes() -> None:
    envelope = (
        b'{"schema_version":"openai-compatible/1","operation":"chat.completions.create",'
        b'"request_id":"req_wire_1","body":{"model":"reference-model",'
        b'"messages":[{"role":"user","content":"ping"}],"stream":true}}'
    )
    packet = Packet(M.FRAME_SUBMIT, FrameSubmit(operation_id=901), encode_document(envelope), 1, 1)
    assert len(envelope) == 199
    assert len(encode_packet(packet)) == 367
