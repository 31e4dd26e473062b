"""Metadata of the messages that concern a connection or a session.

Field names, order and meaning: wire digest 2.1, 2.2, 3.5 and 3.8. Values are the plain numbers of
the wire; which numbers are legal stands beside the layouts in `layouts.py`.
"""

import msgspec


class Metadata(msgspec.Struct, frozen=True):
    """Base of every fixed metadata struct. Fields stand in wire order."""


class OpaqueMetadata(Metadata, frozen=True):
    """The metadata region of a message this project only measures and refuses."""

    data: bytes


class ClientHello(Metadata, frozen=True):
    """CLIENT_HELLO: what a client can speak (wire digest 2.1)."""

    min_version: int
    max_version: int
    wire_format_bitmap: int
    profile_bitmap: int
    payload_kind_bitmap: int
    codec_bitmap: int = 0
    compression_bitmap: int = 0
    dtype_bitmap: int = 0
    layout_bitmap: int = 0
    cache_digest_bitmap: int = 0
    cache_object_bitmap: int = 0
    cache_namespace_count: int = 0
    max_lane_count: int = 1
    max_cache_entries: int = 0
    max_cache_bytes: int = 0
    target_cadence_x100: int = 0
    latency_budget_ms: int = 0
    quality_tier: int = 0
    degrade_policy: int = 0
    requested_session_id: int = 0
    auth_bytes: int = 0
    control_extension_bytes: int = 0


class ServerHelloAck(Metadata, frozen=True):
    """SERVER_HELLO_ACK: what was accepted, each bitmap a subset of the offer (wire digest 2.1)."""

    selected_version: int
    wire_format: int
    auth_status: int
    session_id: int
    profile_bitmap: int
    payload_kind_bitmap: int
    codec_bitmap: int = 0
    compression_bitmap: int = 0
    dtype_bitmap: int = 0
    layout_bitmap: int = 0
    cache_digest_bitmap: int = 0
    cache_object_bitmap: int = 0
    max_cache_entries: int = 0
    max_cache_bytes: int = 0
    max_lane_count: int = 1
    max_concurrent_frames: int = 0
    target_cadence_x100: int = 0
    latency_budget_ms: int = 0
    quality_tier: int = 0
    degrade_policy: int = 0
    max_body_bytes: int = 0
    token_ttl_ms: int = 0
    retry_after_ms: int = 0
    control_extension_bytes: int = 0
    server_flags: int = 0


class SessionPatch(Metadata, frozen=True):
    """SESSION_PATCH: a change of low-frequency session fields, gated by `patch_mask`."""

    profile_id: int
    patch_mask: int
    target_cadence_x100: int
    quality_tier: int
    degrade_policy: int
    active_lane_mask: int
    preferred_codec_bitmap: int
    preferred_compression_bitmap: int
    profile_patch_bytes: int


class SessionPatchAck(Metadata, frozen=True):
    """SESSION_PATCH_ACK: which of the fields took effect."""

    ack_status: int
    reject_reason: int
    applied_patch_mask: int
    rejected_patch_mask: int
    retry_after_ms: int
    effective_profile_id: int
    effective_target_cadence_x100: int
    effective_quality_tier: int
    effective_degrade_policy: int
    effective_lane_mask: int
    effective_codec_bitmap: int
    effective_compression_bitmap: int
    profile_patch_ack_bytes: int


class SessionOpen(Metadata, frozen=True):
    """SESSION_OPEN (wire digest 2.2). `default_deadline_ms` is the SDK's 500 and not a limit."""

    requested_session_id: int
    profile_id: int
    priority: int
    session_flags: int
    schema_id: int
    schema_version: int
    default_deadline_ms: int
    max_in_flight: int
    lease_ttl_hint_ms: int
    resume_token_bytes: int = 0
    auth_bytes: int = 0
    session_extension_bytes: int = 0
    client_session_tag: int = 0


class SessionOpenAck(Metadata, frozen=True):
    """SESSION_OPEN_ACK; a rejection carries session id 0 and a text in the body (2.2)."""

    session_id: int
    accepted_profile: int
    accepted_priority: int
    status: int
    schema_id: int
    schema_version: int
    granted_operation_credit: int
    max_in_flight: int
    lease_ttl_ms: int = 0
    resume_window_ms: int = 0
    resume_token_bytes: int = 0
    session_extension_bytes: int = 0
    server_session_tag: int = 0
    route_scope_id: int = 0
    session_error_code: int = 0
    session_flags_ack: int = 0


class SessionClose(Metadata, frozen=True):
    """SESSION_CLOSE: `drain_timeout_ms` 0 leaves the wait to the server (wire digest 2.2)."""

    reason: int
    in_flight_policy: int
    drain_timeout_ms: int
    last_operation_id: int
    session_error_code: int
    session_close_tag: int


class SessionCloseAck(Metadata, frozen=True):
    """SESSION_CLOSE_ACK: `status` is a CloseStatus (wire digest 2.2)."""

    status: int
    last_operation_id: int
    session_error_code: int


class SessionMigrate(Metadata, frozen=True):
    """SESSION_MIGRATE: a wish to go on over another carrier (wire digest 2.3)."""

    old_transport: int
    new_transport: int
    last_result_frame_id: int
    client_ts_us: int


class SessionMigrateAck(Metadata, frozen=True):
    """SESSION_MIGRATE_ACK; an `accept_code` other than 0 refuses (wire digest 2.3)."""

    accept_code: int
    resume_from_frame_id: int
    grace_window_ms: int
    server_ts_us: int


class TransportProbe(Metadata, frozen=True):
    """TRANSPORT_PROBE, answered at any time, never required (wire digest 2.1)."""

    probe_id: int
    payload_bytes: int
    client_ts_us: int


class TransportProbeAck(Metadata, frozen=True):
    """TRANSPORT_PROBE_ACK."""

    probe_id: int
    server_ts_us: int


class FlowUpdate(Metadata, frozen=True):
    """FLOW_UPDATE: credit for new operations at one of three scopes (wire digest 3.8)."""

    scope: int
    reason: int
    level: int
    connection_credit: int
    session_credit: int
    operation_credit: int
    operation_id: int
    retry_after_ms: int
    credit_epoch: int
    flags: int


class ErrorNotice(Metadata, frozen=True):
    """ERROR: `code` an ErrorCode or a family code, `scope` an ErrorScope (wire digest 3.5)."""

    code: int
    scope: int
    is_fatal: int
    retry_after_ms: int
    related_session: int
    related_frame: int
    related_view: int
    diagnostic_bytes: int


class RecoverableError(Metadata, frozen=True):
    """ERROR_RECOVERABLE: one message was refused, nothing ended (wire digest 3.5)."""

    code: int
    scope: int
    recovery_action: int
    source_role: int
    flags: int
    retry_after_ms: int
    related_session: int
    related_frame: int
    related_view: int
    diagnostic_bytes: int
