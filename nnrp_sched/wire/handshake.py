"""What is offered and accepted when a connection or a session begins (wire digest 2.1, 2.2)."""

from nnrp_sched.errors import RemoteProtocolError
from nnrp_sched.wire.enums import ErrorCode, PayloadKind, PriorityClass, SessionErrorCode
from nnrp_sched.wire.limits import Limits
from nnrp_sched.wire.session_messages import ClientHello, ServerHelloAck, SessionOpen

_VERSION = 1
_WIRE_FORMAT = 0
_PROFILES = 0x3
"""Tensor and token: what the SDK offers. The API profile has no bit of its own."""

_SDK_PAYLOAD_KINDS = 0x73
_U16 = 0xFFFF
_U32 = 0xFFFF_FFFF

SDK_BINDING = (2, 0x1001, 3)
"""Session profile, schema and schema version an SDK client opens with (wire digest 2.2)."""

_BINDINGS = frozenset({SDK_BINDING, (0, 0, 0)})

SDK_HELLO = ClientHello(
    min_version=_VERSION,
    max_version=_VERSION,
    wire_format_bitmap=1 << _WIRE_FORMAT,
    profile_bitmap=_PROFILES,
    payload_kind_bitmap=_SDK_PAYLOAD_KINDS,
    latency_budget_ms=500,
)
"""The hello of the SDK's client, byte for byte."""


def sdk_session_open(
    *, priority: int, max_in_flight: int, requested_session_id: int
) -> SessionOpen:
    """The SESSION_OPEN of the SDK's client, with the three values a caller chooses."""
    profile_id, schema_id, schema_version = SDK_BINDING
    return SessionOpen(
        requested_session_id=requested_session_id,
        profile_id=profile_id,
        priority=priority,
        session_flags=0,
        schema_id=schema_id,
        schema_version=schema_version,
        default_deadline_ms=500,
        max_in_flight=max_in_flight,
        lease_ttl_hint_ms=30_000,
    )


def answer_hello(hello: ClientHello, limits: Limits) -> ServerHelloAck:
    """What a server accepts of an offer.

    Raises `RemoteProtocolError` when nothing is left that both speak, or when the offer asks for
    extensions, of which there are none here (wire digest 6-21).
    """
    if not hello.min_version <= _VERSION <= hello.max_version or not hello.wire_format_bitmap & 1:
        raise RemoteProtocolError(
            "the client offers neither version 1 nor wire format 0",
            code=ErrorCode.UNSUPPORTED_VERSION,
        )
    profiles = hello.profile_bitmap & _PROFILES
    payload_kinds = hello.payload_kind_bitmap & PayloadKind.STRUCTURED_EVENT
    if not profiles or not payload_kinds:
        raise RemoteProtocolError(
            "the client offers no supported profile with structured events",
            code=ErrorCode.UNSUPPORTED_CAPABILITY,
        )
    if hello.control_extension_bytes:
        raise RemoteProtocolError(
            "extensions in the hello are not supported",
            code=ErrorCode.UNSUPPORTED_CAPABILITY,
        )
    return ServerHelloAck(
        selected_version=_VERSION,
        wire_format=_WIRE_FORMAT,
        auth_status=0,
        session_id=0,
        profile_bitmap=profiles,
        payload_kind_bitmap=payload_kinds,
        max_lane_count=min(hello.max_lane_count, 1),
        max_concurrent_frames=min(limits.max_in_flight, _U16),
        max_body_bytes=min(limits.max_packet_bytes, _U32),
    )


def hello_ack_fault(offer: ClientHello, ack: ServerHelloAck) -> tuple[ErrorCode, str] | None:
    """Why an answer to our hello cannot be lived with, or None."""
    if ack.selected_version != _VERSION or ack.wire_format != _WIRE_FORMAT:
        return ErrorCode.UNSUPPORTED_VERSION, "the server selected a version we did not offer"
    if ack.auth_status:
        return ErrorCode.AUTH_FAILED, f"the server answered auth status {ack.auth_status}"
    wider = [
        name
        for name in ("profile_bitmap", "payload_kind_bitmap", *_OTHER_BITMAPS)
        if getattr(ack, name) & ~getattr(offer, name)
    ]
    if wider:
        return ErrorCode.INVALID_STATE, f"the server accepted more than was offered: {wider[0]}"
    if not ack.payload_kind_bitmap & PayloadKind.STRUCTURED_EVENT:
        return ErrorCode.UNSUPPORTED_CAPABILITY, "the server takes no structured events"
    return None


_OTHER_BITMAPS = (
    *("codec_bitmap", "compression_bitmap", "dtype_bitmap", "layout_bitmap"),
    *("cache_digest_bitmap", "cache_object_bitmap"),
)


def session_open_fault(request: SessionOpen) -> tuple[SessionErrorCode, str] | None:
    """Why a session request must be refused whatever the server thinks of it, or None.

    Accepted bindings: the SDK's (2, 0x1001, 3) and the unbound (0, 0, 0) (wire digest 6-1).
    """
    if request.priority > max(PriorityClass):
        return SessionErrorCode.PRIORITY_REJECTED, f"priority class {request.priority} is unknown"
    if request.session_flags & ~0xF:
        return (
            SessionErrorCode.LEASE_POLICY_REJECTED,
            f"session flags {request.session_flags:#x} are unknown",
        )
    if request.profile_id not in {profile for profile, _, _ in _BINDINGS}:
        return (
            SessionErrorCode.PROFILE_UNSUPPORTED,
            f"session profile {request.profile_id} is not supported",
        )
    if (request.profile_id, request.schema_id, request.schema_version) not in _BINDINGS:
        return (
            SessionErrorCode.SCHEMA_UNSUPPORTED,
            f"schema {request.schema_id:#x} v{request.schema_version} is not supported",
        )
    if request.auth_bytes or request.session_extension_bytes:
        return (
            SessionErrorCode.AUTH_FAILED,
            "authentication and extensions in SESSION_OPEN are not supported",
        )
    if request.resume_token_bytes:
        return SessionErrorCode.RESUME_REJECTED, "sessions cannot be resumed here"
    return None
