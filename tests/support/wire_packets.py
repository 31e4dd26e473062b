"""Packets for the tests of the wire: one legal sample and all legal values of every type."""

import struct
from typing import Any

import msgspec
from hypothesis import strategies as st

from nnrp_sched.wire import encode_document
from nnrp_sched.wire.enums import MessageType
from nnrp_sched.wire.layout import Body, Layout, Scope
from nnrp_sched.wire.layouts import LAYOUTS
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session_messages import FlowUpdate, OpaqueMetadata

M = MessageType
SESSION = 7
FRAME = 1
OPERATION = 901
DOCUMENT = b'{"schema_version":"openai-compatible/1"}'

WIDTHS = {"B": 8, "H": 16, "I": 32, "Q": 64}

SUPPORTED = sorted(kind for kind in M if LAYOUTS[kind].supported)
REFUSED = sorted(kind for kind in M if not LAYOUTS[kind].supported)

# What digest sections 2 and 3 allow where a field may not hold every number: one strategy a field.
_RANGES: dict[str, st.SearchStrategy[int]] = {
    "server_flags": st.sampled_from([0, 1]),
    "patch_mask": st.integers(0, 0x7F),
    "ack_status": st.integers(0, 2),
    "reject_reason": st.integers(0, 5),
    "priority": st.integers(0, 2),
    "priority_class": st.integers(0, 2),
    "session_flags": st.integers(0, 0xF),
    "session_flags_ack": st.integers(0, 0x1F),
    "in_flight_policy": st.integers(0, 1),
    "frame_class": st.integers(0, 3),
    "submit_mode": st.integers(0, 2),
    "budget_policy": st.integers(0, 0xF),
    "applied_budget_policy": st.integers(0, 0xF),
    "loss_tolerance": st.sampled_from([0, 1, 2, 3, 0xFF]),
    "payload_kind_bitmap": st.integers(0, 0x7F),
    "result_flags": st.integers(0, 7),
    "result_class": st.integers(0, 3),
    "stage": st.integers(1, 11),
    "percent_x100": st.one_of(st.integers(0, 10_000), st.just(0xFFFF)),
    "drop_reason": st.integers(1, 9),
    "is_fatal": st.integers(0, 1),
    "deadline_unix_ms": st.integers(1, 2**64 - 1),
    "operation_id": st.integers(1, 2**64 - 1),
    "old_operation_id": st.integers(1, 2**64 - 1),
    "new_operation_id": st.integers(1, 2**64 - 1),
    "result_sequence": st.integers(1, 2**64 - 1),
    "object_id": st.integers(1, 2**64 - 1),
}

_RANGES_BY_TYPE: dict[MessageType, dict[str, st.SearchStrategy[int]]] = {
    M.ERROR: {"scope": st.integers(0, 2), "code": st.integers(1, 2**32 - 1)},
    M.ERROR_RECOVERABLE: {
        "scope": st.integers(0, 2),
        "code": st.integers(1, 2**32 - 1),
        "flags": st.integers(0, 3),
    },
    M.SESSION_OPEN_ACK: {"status": st.integers(0, 3)},
    M.SESSION_CLOSE: {"reason": st.integers(0, 5)},
    M.SESSION_CLOSE_ACK: {"status": st.integers(0, 3)},
    M.CLIENT_HELLO: {"payload_kind_bitmap": st.integers(0, 2**32 - 1)},
    M.SERVER_HELLO_ACK: {"payload_kind_bitmap": st.integers(0, 2**32 - 1)},
    M.RESULT_HINT: {
        "policy": st.integers(0, 4),
        "congestion": st.integers(0, 3),
        "reason": st.integers(0, 4),
    },
    M.CANCEL: {"reason": st.integers(0, 8), "flags": st.integers(0, 3)},
    M.ABORT: {"reason": st.integers(0, 8), "flags": st.integers(0, 3)},
    M.SUPERSEDE: {"flags": st.integers(0, 1)},
    M.BUDGET_UPDATE: {"flags": st.integers(1, 2)},
    M.BACKPRESSURE: {"level": st.integers(1, 2**16 - 1), "flags": st.integers(0, 2)},
    M.CREDIT_UPDATE: {"flags": st.integers(0, 2)},
    M.RETRY_AFTER: {"flags": st.integers(0, 2)},
    M.SESSION_MIGRATE: {},
    M.SESSION_MIGRATE_ACK: {},
    M.TRACE_CONTEXT: {"stage": st.integers(0, 2**16 - 1), "flags": st.integers(0, 3)},
    M.FLOW_UPDATE: {},
}
_FLAGS_IN_TWO_BITS = st.integers(0, 3)

_TENSOR_FIELDS = (
    *("src_w", "src_h", "tile_w", "tile_h", "tile_count", "section_count", "input_profile"),
    *("target_fps_x100", "tile_base_id", "camera_bytes", "tile_index_bytes"),
)


def field_codes(layout: Layout) -> list[str]:
    """One struct code a field, padding left out."""
    codes: list[str] = []
    count = ""
    for character in layout.codec.format.lstrip("<"):
        if character.isdigit():
            count += character
            continue
        if character != "x":
            codes.extend(character * int(count or 1))
        count = ""
    return codes


def field_names(layout: Layout) -> tuple[str, ...]:
    """The metadata struct's fields, in wire order."""
    return layout.metadata_type.__struct_fields__ if layout.metadata_type is not None else ()


@st.composite
def legal_packets(draw: st.DrawFn, kind: MessageType) -> Packet:
    """Any packet of a type that a strict peer would send."""
    layout = LAYOUTS[kind]
    trace_id = draw(st.integers(0, 2**64 - 1))
    header = {
        "session_id": draw(st.integers(0, 2**32 - 1)),
        "frame_id": draw(st.integers(0, 2**32 - 1)),
        "trace_id": trace_id,
        "flags": draw(st.integers(0, 0x3F)),
        "view_id": draw(st.integers(0, 2**16 - 1)),
        "route_id": draw(st.integers(0, 2**16 - 1)),
    }
    if not layout.supported:
        return Packet(kind, OpaqueMetadata(draw(st.binary(max_size=80))), b"", **header)
    parts = [draw(st.binary(max_size=40)) for _ in layout.length_fields]
    lengths = dict(zip(layout.length_fields, map(len, parts), strict=True))
    body = draw(st.binary(max_size=80)) if layout.body is Body.FREE else b"".join(parts)
    if layout.metadata_type is None:
        return Packet(kind, None, body, **header)
    if kind is M.FLOW_UPDATE:
        return Packet(kind, draw(_flow_updates(header)), body, **header)
    values: dict[str, int] = {}
    own = _RANGES_BY_TYPE.get(kind, {"flags": _FLAGS_IN_TWO_BITS})
    for name, code in zip(field_names(layout), field_codes(layout), strict=True):
        if name in lengths:
            values[name] = lengths[name]
        elif name in own or name in _RANGES:
            values[name] = draw(own[name] if name in own else _RANGES[name])
        elif code == "h":
            values[name] = draw(st.integers(-(2**15), 2**15 - 1))
        else:
            values[name] = draw(st.integers(0, 2 ** WIDTHS[code] - 1))
    if kind is M.TRACE_CONTEXT:
        header["trace_id"] = draw(st.sampled_from([0, values["trace_id"]]))
    if kind is M.SUPERSEDE and values["new_operation_id"] == values["old_operation_id"]:
        values["new_operation_id"] ^= 1
        values["new_operation_id"] = values["new_operation_id"] or 2
    if values.get("flags") == 2 and "scope_id" in values:
        values["scope_id"] = values["scope_id"] or 1
    if kind is M.FRAME_SUBMIT:
        if not values["payload_kind_bitmap"] & 1:
            values.update(dict.fromkeys(_TENSOR_FIELDS, 0))
        if values["submit_mode"] == 0:
            values["object_ref_mask"] = 0
    return Packet(kind, layout.metadata_type(**values), body, **header)


@st.composite
def _flow_updates(draw: st.DrawFn, header: dict[str, int]) -> FlowUpdate:
    scope = draw(st.integers(0, 2))
    header["session_id"] = 0 if scope == 0 else draw(st.integers(1, 2**32 - 1))
    credit = draw(st.integers(0, 2**16 - 1))
    flags = draw(st.integers(0, 0xF))
    return FlowUpdate(
        scope,
        draw(st.integers(0, 4)),
        draw(st.integers(0, 3)),
        credit if scope == 0 else 0,
        credit if scope == 1 else 0,
        credit if scope == 2 else 0,
        draw(st.integers(1, 2**64 - 1)) if scope == 2 else 0,
        draw(st.integers(0, 2**32 - 1)) if flags & 2 else 0,
        draw(st.integers(0, 2**32 - 1)),
        flags,
    )


_SAMPLE_VALUES: dict[str, int] = {
    "min_version": 1,
    "max_version": 1,
    "selected_version": 1,
    "wire_format_bitmap": 1,
    "profile_bitmap": 3,
    "payload_kind_bitmap": 0x10,
    "payload_frame_count": 1,
    "max_lane_count": 1,
    "profile_id": 2,
    "schema_id": 0x1001,
    "schema_version": 3,
    "max_in_flight": 4,
    "loss_tolerance": 0xFF,
    "operation_id": OPERATION,
    "old_operation_id": OPERATION,
    "new_operation_id": OPERATION + 1,
    "result_sequence": 1,
    "control_sequence": 1,
    "drop_reason": 3,
    "stage": 5,
    "code": 3,
    "deadline_unix_ms": 1_900_000_000_000,
    "trace_id": 0xFEED,
    "span_id": 0xBEEF,
    "level": 1,
    "status_code": 200,
}


def sample(kind: MessageType, body: bytes | None = None, **changes: Any) -> Packet:
    """A legal packet of a type for session 7, frame 1, operation 901.

    `changes` name metadata fields, or header fields of the packet. A counted body sets its length
    field; a submit and a result carry a typed document.
    """
    layout = LAYOUTS[kind]
    if not layout.supported:
        ids = {"session_id": SESSION, **changes}
        return Packet(kind, OpaqueMetadata(bytes(24)), body or b"", **ids)
    if body is None:
        if kind in (M.FRAME_SUBMIT, M.RESULT_PUSH):
            body = encode_document(DOCUMENT)
        else:
            body = b"{}" if layout.body is Body.COUNTED and kind is M.PARTIAL_RESULT else b""
    header = {
        "session_id": 0 if layout.scope is Scope.CONNECTION else SESSION,
        "frame_id": FRAME if layout.scope in (Scope.OPERATION, Scope.FRAME) else 0,
    }
    header_names = {"session_id", "frame_id", "trace_id", "flags", "view_id", "route_id"}
    names = field_names(layout)
    values = {name: _SAMPLE_VALUES.get(name, 0) for name in names}
    if kind is M.FLOW_UPDATE:
        values.update(scope=1, session_credit=2, flags=1, operation_id=0, level=0)
    if kind is M.BUDGET_UPDATE:
        values.update(flags=1, token_budget=100)
    if layout.length_fields:
        values[layout.length_fields[0]] = len(body)
    for name, value in changes.items():
        if name in names:
            values[name] = value
        else:
            assert name in header_names, name
            header[name] = value
    metadata = layout.metadata_type(**values) if layout.metadata_type is not None else None
    return Packet(kind, metadata, body, **header)


def raw_bytes(packet: Packet) -> bytes:
    """A packet's bytes without a check of any value, for packets no strict peer would send."""
    layout = LAYOUTS[packet.message_type]
    region = layout.pack(packet.metadata)
    header = struct.pack(
        "<4sBBBBIIIIIHHQ",
        b"NNRP",
        1,
        0,
        packet.message_type,
        40,
        packet.flags,
        len(region),
        len(packet.body),
        packet.session_id,
        packet.frame_id,
        packet.view_id,
        packet.route_id,
        packet.trace_id,
    )
    return header + region + packet.body


def changed(packet: Packet, **changes: Any) -> Packet:
    """The packet with metadata or header fields replaced."""
    names = packet.metadata.__struct_fields__ if packet.metadata is not None else ()
    inner = {name: value for name, value in changes.items() if name in names}
    outer = {name: value for name, value in changes.items() if name not in names}
    metadata = packet.metadata
    if inner and metadata is not None:
        metadata = msgspec.structs.replace(metadata, **inner)
    return msgspec.structs.replace(packet, metadata=metadata, **outer)
