"""Metadata of the messages that concern an operation: submit, results, control.

Field names, order and meaning: wire digest 3.1 to 3.9. Values are the plain numbers of the wire;
which numbers are legal stands beside the layouts in `layouts.py`.
"""

from nnrp_sched.wire.enums import LossTolerance
from nnrp_sched.wire.session_messages import Metadata


class FrameSubmit(Metadata, frozen=True):
    """FRAME_SUBMIT (wire digest 3.1); the defaults are what the profile sends."""

    src_w: int = 0
    src_h: int = 0
    tile_w: int = 0
    tile_h: int = 0
    tile_count: int = 0
    section_count: int = 0
    frame_class: int = 0
    input_profile: int = 0
    tile_index_mode: int = 1
    latency_budget_ms: int = 0
    target_fps_x100: int = 0
    retry_of_frame: int = 0
    tile_base_id: int = 0
    camera_bytes: int = 0
    tile_index_bytes: int = 0
    operation_id: int = 0
    submit_mode: int = 0
    budget_policy: int = 0
    loss_tolerance: int = LossTolerance.INHERIT
    object_ref_mask: int = 0
    dependency_frame_id: int = 0
    payload_kind_bitmap: int = 0x10
    payload_frame_count: int = 1


class ResultPush(Metadata, frozen=True):
    """RESULT_PUSH (wire digest 3.4); correlates by the header's frame id only."""

    status_code: int
    result_flags: int = 0
    section_count: int = 0
    tile_count: int = 0
    active_profile_id: int = 0
    inference_ms: int = 0
    queue_ms: int = 0
    server_total_ms: int = 0
    tile_base_id: int = 0
    tile_index_bytes: int = 0
    result_class: int = 0
    applied_budget_policy: int = 0
    reused_frame_id: int = 0
    covered_tiles: int = 0
    dropped_tiles: int = 0
    payload_kind_bitmap: int = 0
    payload_frame_count: int = 0


class PartialResult(Metadata, frozen=True):
    """PARTIAL_RESULT (wire digest 3.3); sequences start at 1 and rise within the operation."""

    operation_id: int
    result_sequence: int
    object_id: int
    delta_sequence: int
    body_bytes: int
    flags: int


class ResultDropReason(Metadata, frozen=True):
    """RESULT_DROP_REASON: the terminal of a dropped operation (wire digest 3.5)."""

    operation_id: int
    result_sequence: int
    drop_reason: int
    source_role: int
    flags: int
    diagnostic_bytes: int


class ResultHint(Metadata, frozen=True):
    """RESULT_HINT: advice about load, for the whole session (wire digest 3.5)."""

    policy: int
    congestion: int
    reason: int
    retry_after_ms: int


class RetryAfter(Metadata, frozen=True):
    """RETRY_AFTER: advice when to try again (wire digest 3.5)."""

    scope_id: int
    control_sequence: int
    retry_after_ms: int
    jitter_ms: int
    reason: int
    source_role: int
    flags: int
    diagnostic_bytes: int


class ControlRequest(Metadata, frozen=True):
    """CANCEL and ABORT (wire digest 3.6); operation 0 means all of the session."""

    operation_id: int
    control_sequence: int
    reason: int
    source_role: int
    flags: int
    diagnostic_bytes: int


class Scheduling(Metadata, frozen=True):
    """PRIORITY_UPDATE, DEADLINE and EXPIRE_AT (wire digest 3.7); times are Unix milliseconds."""

    operation_id: int
    control_sequence: int
    priority_class: int
    priority_delta: int
    deadline_unix_ms: int
    flags: int


class Supersede(Metadata, frozen=True):
    """SUPERSEDE: the header's frame id is the old operation's (wire digest 3.7)."""

    old_operation_id: int
    new_operation_id: int
    control_sequence: int
    drop_reason: int
    flags: int
    diagnostic_bytes: int

    @property
    def operation_id(self) -> int:
        """The operation the message is about, named as in the other control messages."""
        return self.old_operation_id


class BudgetUpdate(Metadata, frozen=True):
    """BUDGET_UPDATE (wire digest 3.7)."""

    operation_id: int
    compute: int
    memory: int
    bandwidth: int
    token_budget: int
    flags: int


class Progress(Metadata, frozen=True):
    """PROGRESS (wire digest 3.7); `percent_x100` is 0xffff when unknown."""

    operation_id: int
    progress_sequence: int
    stage: int
    percent_x100: int
    object_id: int
    body_bytes: int


class Pressure(Metadata, frozen=True):
    """CREDIT_UPDATE and BACKPRESSURE (wire digest 3.8)."""

    scope_id: int
    credit_window: int
    level: int
    reason: int
    retry_after_ms: int
    flags: int


class Capability(Metadata, frozen=True):
    """CAPABILITY_NEGOTIATION and DEGRADE_PROFILE (wire digest 3.9)."""

    profile_id: int
    count: int
    cost_model: int
    rank: int
    limit_bytes: int
    limit_units: int
    body_bytes: int
    flags: int


class RouteHint(Metadata, frozen=True):
    """ROUTE_HINT and EXECUTION_HINT (wire digest 3.9)."""

    operation_id: int
    route_id: int
    executor_class: int
    affinity_class: int
    deadline_unix_ms: int
    body_bytes: int
    flags: int


class TraceContext(Metadata, frozen=True):
    """TRACE_CONTEXT (wire digest 3.9); a zero trace or span id is observed, never forwarded."""

    trace_id: int
    span_id: int
    parent_span_id: int
    stage: int
    flags: int
    body_bytes: int
