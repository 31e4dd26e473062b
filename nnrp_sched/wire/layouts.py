"""The layouts of NNRP/1 preview4, one row a message type (wire digest 1.2, 2.1, 2.2, 3.1 to 3.9).

A row reads: type, who may send it, which header ids it carries, metadata struct, fields as `struct`
writes them (`x` is a reserved byte), body, value rules.
"""

from nnrp_sched.wire.control_enums import (
    BudgetChange,
    Congestion,
    HintPolicy,
    HintReason,
    ProgressStage,
)
from nnrp_sched.wire.enums import (
    CloseReason,
    CloseStatus,
    DropReason,
    ErrorScope,
    InFlightPolicy,
    LossTolerance,
    PatchRejectReason,
    PatchStatus,
    PriorityClass,
    SessionStatus,
)
from nnrp_sched.wire.enums import MessageType as M
from nnrp_sched.wire.layout import BOTH, CLIENT, SERVER, Body, Layout, Scope, row
from nnrp_sched.wire.operation_messages import (
    BudgetUpdate,
    Capability,
    ControlRequest,
    FrameSubmit,
    PartialResult,
    Pressure,
    Progress,
    ResultDropReason,
    ResultHint,
    ResultPush,
    RetryAfter,
    RouteHint,
    Scheduling,
    Supersede,
    TraceContext,
)
from nnrp_sched.wire.rules import (
    CAPABILITY_RULES,
    CONTROL_RULES,
    FLOW_RULES,
    HINT_RULES,
    PRESSURE_RULES,
    SCHEDULING_RULES,
    TIME_RULES,
    at_most,
    masked,
    not_zero,
    one_of,
    where,
    without_tensor_fields,
)
from nnrp_sched.wire.session_messages import (
    ClientHello,
    ErrorNotice,
    FlowUpdate,
    OpaqueMetadata,
    RecoverableError,
    ServerHelloAck,
    SessionClose,
    SessionCloseAck,
    SessionMigrate,
    SessionMigrateAck,
    SessionOpen,
    SessionOpenAck,
    SessionPatch,
    SessionPatchAck,
    TransportProbe,
    TransportProbeAck,
)

_CONTROL = "QQHBBI8x"
_SCHEDULING = "QQHhQI"
_PRESSURE = "QQHHII4x"
_CAPABILITY = "HHHHQQII"
_HINT = "QIHHQII"

# fmt: off
_ROWS: tuple[Layout, ...] = (
    row(
        M.CLIENT_HELLO, CLIENT, Scope.CONNECTION, ClientHello, "BBHIIIIIIHHHHIIHHHHIII",
        body=("auth_bytes", "control_extension_bytes"),
    ),
    row(
        M.SERVER_HELLO_ACK, SERVER, Scope.CONNECTION, ServerHelloAck, "BBBx11I6H5I",
        body=("control_extension_bytes",),
        rules=(masked("server_flags", 1),),
    ),
    row(
        M.SESSION_PATCH, CLIENT, Scope.SESSION, SessionPatch, "H2xIIHHQIII",
        body=("profile_patch_bytes",),
        rules=(masked("patch_mask", 0x7F),),
    ),
    row(
        M.SESSION_PATCH_ACK, SERVER, Scope.SESSION, SessionPatchAck, "HHIIIH2xIHHQIII",
        body=("profile_patch_ack_bytes",),
        rules=(one_of("ack_status", PatchStatus), one_of("reject_reason", PatchRejectReason)),
    ),
    row(M.CLOSE, BOTH, Scope.CONNECTION, body=Body.FREE),
    row(
        M.ERROR, BOTH, Scope.SESSION_ADVICE, ErrorNotice, "8I",
        body=("diagnostic_bytes",),
        rules=(not_zero("code"), one_of("scope", ErrorScope), at_most("is_fatal", 1)),
    ),
    row(
        M.SESSION_OPEN, CLIENT, Scope.CONNECTION, SessionOpen, "IHBBIIIH2xIIIIQ",
        body=("resume_token_bytes", "auth_bytes", "session_extension_bytes"),
        rules=(one_of("priority", PriorityClass), masked("session_flags", 0xF)),
    ),
    row(
        # The session id of a success stands in the header, and 0 in a rejection.
        M.SESSION_OPEN_ACK, SERVER, Scope.SESSION_ADVICE, SessionOpenAck, "IHBBIIHHIIIIQIII",
        body=("resume_token_bytes", "session_extension_bytes"),
        rules=(one_of("status", SessionStatus), masked("session_flags_ack", 0x1F)),
    ),
    row(
        M.SESSION_CLOSE, CLIENT, Scope.SESSION, SessionClose, "HBxIQII",
        rules=(one_of("reason", CloseReason), one_of("in_flight_policy", InFlightPolicy)),
    ),
    row(
        M.SESSION_CLOSE_ACK, SERVER, Scope.SESSION, SessionCloseAck, "B3xQI",
        rules=(one_of("status", CloseStatus),),
    ),
    row(
        M.FRAME_SUBMIT, CLIENT, Scope.FRAME, FrameSubmit,
        "HHHHHHBBBxHHIIII4xQ4xBBBxIIIH2x",
        body=Body.FREE,
        rules=(
            not_zero("operation_id"),
            at_most("frame_class", 3),
            at_most("submit_mode", 2),
            masked("budget_policy", 0xF),
            one_of("loss_tolerance", LossTolerance),
            masked("payload_kind_bitmap", 0x7F),
            where("a tensor field without a tensor payload", without_tensor_fields),
            where(
                "inline submit with an object reference",
                lambda submit, _: submit.submit_mode != 0 or submit.object_ref_mask == 0,
            ),
        ),
    ),
    row(M.FRAME_CANCEL, CLIENT, Scope.FRAME),
    row(
        M.RESULT_PUSH, SERVER, Scope.FRAME, ResultPush,
        "HHHHH2xHHH2xII16xBB2xIHHIH2x",
        body=Body.FREE,
        rules=(
            masked("result_flags", 7),
            at_most("result_class", 3),
            masked("applied_budget_policy", 0xF),
            masked("payload_kind_bitmap", 0x7F),
        ),
    ),
    row(M.RESULT_DROP, SERVER, Scope.FRAME),
    row(M.FLOW_UPDATE, BOTH, Scope.SESSION_ADVICE, FlowUpdate, "BBBxHHH2xQIII", rules=FLOW_RULES),
    row(
        M.RESULT_HINT, SERVER, Scope.SESSION_ADVICE, ResultHint, "IIII",
        rules=(
            one_of("policy", HintPolicy),
            one_of("congestion", Congestion),
            one_of("reason", HintReason),
        ),
    ),
    row(M.TRANSPORT_PROBE, BOTH, Scope.CONNECTION, TransportProbe, "IIQ", body=("payload_bytes",)),
    row(M.SESSION_MIGRATE, CLIENT, Scope.SESSION, SessionMigrate, "IIQQ"),
    row(M.SESSION_MIGRATE_ACK, SERVER, Scope.SESSION, SessionMigrateAck, "IQIQ"),
    row(M.TRANSPORT_PROBE_ACK, BOTH, Scope.CONNECTION, TransportProbeAck, "I4xQ"),
    row(M.PING, BOTH, Scope.SESSION_ADVICE),
    row(M.PONG, BOTH, Scope.SESSION_ADVICE),
    row(
        M.CANCEL, BOTH, Scope.OPERATION, ControlRequest, _CONTROL,
        body=("diagnostic_bytes",),
        rules=CONTROL_RULES,
    ),
    row(
        M.ABORT, BOTH, Scope.OPERATION, ControlRequest, _CONTROL,
        body=("diagnostic_bytes",),
        rules=CONTROL_RULES,
    ),
    row(M.PRIORITY_UPDATE, BOTH, Scope.OPERATION, Scheduling, _SCHEDULING, rules=SCHEDULING_RULES),
    row(M.DEADLINE, BOTH, Scope.OPERATION, Scheduling, _SCHEDULING, rules=TIME_RULES),
    row(M.EXPIRE_AT, BOTH, Scope.OPERATION, Scheduling, _SCHEDULING, rules=TIME_RULES),
    row(
        M.SUPERSEDE, BOTH, Scope.OPERATION, Supersede, "QQQHHI",
        body=("diagnostic_bytes",),
        rules=(
            not_zero("old_operation_id"),
            not_zero("new_operation_id"),
            one_of("drop_reason", DropReason),
            masked("flags", 1),
            where(
                "an operation superseded by itself",
                lambda change, _: change.old_operation_id != change.new_operation_id,
            ),
        ),
    ),
    row(
        M.BUDGET_UPDATE, BOTH, Scope.OPERATION, BudgetUpdate, "QQQQII",
        rules=(not_zero("operation_id"), one_of("flags", BudgetChange)),
    ),
    row(
        M.PROGRESS, BOTH, Scope.OPERATION, Progress, "QQHHQI",
        body=("body_bytes",),
        rules=(
            not_zero("operation_id"),
            one_of("stage", ProgressStage),
            at_most("percent_x100", 10_000, 0xFFFF),
        ),
    ),
    row(
        M.PARTIAL_RESULT, BOTH, Scope.OPERATION, PartialResult, "QQQQII",
        body=("body_bytes",),
        rules=(
            not_zero("operation_id"),
            not_zero("result_sequence"),
            masked("flags", 3),
            where(
                "neither a body nor an object id",
                lambda partial, _: partial.body_bytes != 0 or partial.object_id != 0,
            ),
            where(
                "object_ref without an object id",
                lambda partial, _: not partial.flags & 2 or partial.object_id != 0,
            ),
        ),
    ),
    row(
        M.BACKPRESSURE, BOTH, Scope.SESSION_ADVICE, Pressure, _PRESSURE,
        rules=(not_zero("level"), *PRESSURE_RULES),
    ),
    row(
        M.CREDIT_UPDATE, BOTH, Scope.SESSION_ADVICE, Pressure, _PRESSURE,
        rules=PRESSURE_RULES,
    ),
    row(
        M.CAPABILITY_NEGOTIATION, BOTH, Scope.SESSION_ADVICE, Capability, _CAPABILITY,
        body=("body_bytes",),
        rules=CAPABILITY_RULES,
    ),
    row(
        M.DEGRADE_PROFILE, BOTH, Scope.SESSION_ADVICE, Capability, _CAPABILITY,
        body=("body_bytes",),
        rules=CAPABILITY_RULES,
    ),
    row(
        M.ROUTE_HINT, BOTH, Scope.OPERATION, RouteHint, _HINT,
        body=("body_bytes",),
        rules=HINT_RULES,
    ),
    row(
        M.EXECUTION_HINT, BOTH, Scope.OPERATION, RouteHint, _HINT,
        body=("body_bytes",),
        rules=HINT_RULES,
    ),
    row(
        M.TRACE_CONTEXT, BOTH, Scope.TRACE, TraceContext, "QQQHHI",
        body=("body_bytes",),
        rules=(
            masked("flags", 3),
            where(
                "the header's trace id is another than the metadata's",
                lambda trace, packet: packet.trace_id in (0, trace.trace_id),
            ),
        ),
    ),
    row(
        M.RESULT_DROP_REASON, BOTH, Scope.OPERATION, ResultDropReason, "QQHBBI8x",
        body=("diagnostic_bytes",),
        rules=(not_zero("operation_id"), not_zero("drop_reason"), masked("flags", 3)),
    ),
    row(
        M.ERROR_RECOVERABLE, BOTH, Scope.SESSION_ADVICE, RecoverableError, "IIHBBIIIII",
        body=("diagnostic_bytes",),
        rules=(not_zero("code"), one_of("scope", ErrorScope), masked("flags", 3)),
    ),
    row(
        M.RETRY_AFTER, BOTH, Scope.SESSION_ADVICE, RetryAfter, "QQIIHBBI",
        body=("diagnostic_bytes",),
        rules=PRESSURE_RULES,
    ),
    *(
        # Measured and refused: nothing of this project uses them (wire digest 1.2).
        row(message_type, BOTH, Scope.SESSION_ADVICE, OpaqueMetadata, body=Body.FREE)
        for message_type in (
            M.CACHE_PUT, M.CACHE_ACK, M.CACHE_INVALIDATE, M.OBJECT_DECLARE, M.OBJECT_REF,
            M.OBJECT_RELEASE, M.OBJECT_PATCH, M.OBJECT_DELTA, M.CACHE_REFERENCE, M.CACHE_MISS,
        )
    ),
)
# fmt: on

LAYOUTS: dict[int, Layout] = {layout.message_type: layout for layout in _ROWS}
"""Every message type of the registry by its code."""
