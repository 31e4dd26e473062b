"""The registries of NNRP/1: every number that has a name (wire digest, sections 1 to 3)."""

from enum import IntEnum, IntFlag


class MessageType(IntEnum):
    """What a packet is: byte 6 of the header (wire digest 1.2)."""

    CLIENT_HELLO = 0x01
    SERVER_HELLO_ACK = 0x02
    SESSION_PATCH = 0x03
    SESSION_PATCH_ACK = 0x04
    CLOSE = 0x05
    ERROR = 0x06
    SESSION_OPEN = 0x07
    SESSION_OPEN_ACK = 0x08
    SESSION_CLOSE = 0x09
    SESSION_CLOSE_ACK = 0x0A
    FRAME_SUBMIT = 0x10
    FRAME_CANCEL = 0x11
    RESULT_PUSH = 0x12
    RESULT_DROP = 0x13
    CACHE_PUT = 0x14
    CACHE_ACK = 0x15
    CACHE_INVALIDATE = 0x16
    FLOW_UPDATE = 0x17
    RESULT_HINT = 0x18
    TRANSPORT_PROBE = 0x19
    TRANSPORT_PROBE_ACK = 0x1A
    SESSION_MIGRATE = 0x1B
    SESSION_MIGRATE_ACK = 0x1C
    PING = 0x20
    PONG = 0x21
    CANCEL = 0x30
    ABORT = 0x31
    PRIORITY_UPDATE = 0x32
    DEADLINE = 0x33
    EXPIRE_AT = 0x34
    SUPERSEDE = 0x35
    BUDGET_UPDATE = 0x36
    PROGRESS = 0x37
    PARTIAL_RESULT = 0x38
    BACKPRESSURE = 0x39
    CREDIT_UPDATE = 0x3A
    CAPABILITY_NEGOTIATION = 0x3B
    DEGRADE_PROFILE = 0x3C
    ROUTE_HINT = 0x3D
    EXECUTION_HINT = 0x3E
    TRACE_CONTEXT = 0x3F
    RESULT_DROP_REASON = 0x40
    OBJECT_DECLARE = 0x41
    OBJECT_REF = 0x42
    OBJECT_RELEASE = 0x43
    OBJECT_PATCH = 0x44
    OBJECT_DELTA = 0x45
    CACHE_REFERENCE = 0x46
    CACHE_MISS = 0x47
    ERROR_RECOVERABLE = 0x48
    RETRY_AFTER = 0x49


class HeaderFlag(IntFlag):
    """Header flags (wire digest 1.1). The profile needs none; other bits make a packet illegal."""

    ACK_REQUIRED = 0x01
    CAN_DROP = 0x02
    STALE = 0x04
    EOS = 0x08
    RETRANSMIT = 0x10
    KEYFRAME = 0x20


class PayloadKind(IntFlag):
    """Payload kinds, one bit each (wire digest 3.1)."""

    TENSOR = 0x01
    TOKEN_CHUNK = 0x02
    AUDIO_CHUNK = 0x04
    VIDEO_CHUNK = 0x08
    STRUCTURED_EVENT = 0x10
    TOOL_DELTA = 0x20
    OPAQUE = 0x40


class ErrorCode(IntEnum):
    """Codes of ERROR and ERROR_RECOVERABLE (wire digest 3.5)."""

    UNSUPPORTED_VERSION = 1
    AUTH_FAILED = 2
    INVALID_STATE = 3
    MALFORMED_HEADER = 4
    MALFORMED_BODY = 5
    UNSUPPORTED_CAPABILITY = 6
    LIMIT_EXCEEDED = 7
    FRAME_EXPIRED = 8
    FRAME_CANCELLED = 9
    CACHE_MISS = 0xA
    SERVER_BUSY = 0xB
    INTERNAL = 0xC


class ErrorScope(IntEnum):
    """How far an ERROR reaches (wire digest 3.5)."""

    CONNECTION = 0
    SESSION = 1
    FRAME = 2


class Role(IntEnum):
    """Who sent a control message (wire digest 3.5); 0x80 and above are private."""

    UNSPECIFIED = 0
    CLIENT = 1
    SERVER = 2
    RUNTIME = 3
    SUBAGENT = 4
    TOOL = 5
    SCHEDULER = 6
    RUNNER = 7


class DropReason(IntEnum):
    """Why an operation ended in RESULT_DROP_REASON (wire digest 3.5)."""

    DEADLINE_EXPIRED = 1
    SUPERSEDED = 2
    PEER_CANCELLED = 3
    BACKPRESSURE = 4
    CAPABILITY_MISMATCH = 5
    BUDGET = 6
    OBJECT_INVALIDATED = 7
    TRANSPORT_CLOSED = 8
    INJECTION = 9


class DropFlag(IntFlag):
    """Flags of RESULT_DROP_REASON (wire digest 3.5)."""

    FINAL = 1
    RETRYABLE = 2


class CancelReason(IntEnum):
    """Why CANCEL or ABORT was sent (wire digest 3.6)."""

    UNSPECIFIED = 0
    USER_CANCELLED = 1
    SUPERSEDED = 2
    DEADLINE = 3
    BUDGET = 4
    DEPENDENCY = 5
    TRANSPORT_CLOSING = 6
    SHUTDOWN = 7
    INJECTION = 8


class CancelFlag(IntFlag):
    """Flags of CANCEL and ABORT (wire digest 3.6)."""

    COOPERATIVE = 1
    HARD_ABORT = 2


class PriorityClass(IntEnum):
    """Session and operation priority classes (wire digest 2.6)."""

    INTERACTIVE = 0
    BALANCED = 1
    BACKGROUND = 2


class SessionStatus(IntEnum):
    """Answers to SESSION_OPEN (wire digest 2.2)."""

    OPENED = 0
    REJECTED = 1
    RETRY_LATER = 2
    RESUMED = 3


class SessionErrorCode(IntEnum):
    """Why a session was refused (wire digest 2.2)."""

    NONE = 0
    AUTH_FAILED = 0x10001
    PROFILE_UNSUPPORTED = 0x10002
    SCHEMA_UNSUPPORTED = 0x10003
    PRIORITY_REJECTED = 0x10004
    LEASE_POLICY_REJECTED = 0x10005
    RESUME_REJECTED = 0x10006
    LIMIT_REACHED = 0x10007


class CloseReason(IntEnum):
    """Why SESSION_CLOSE was sent (wire digest 2.2)."""

    NORMAL = 0
    CLIENT_SHUTDOWN = 1
    SERVER_SHUTDOWN = 2
    IDLE = 3
    PROTOCOL_ERROR = 4
    AUTH_REVOKED = 5


class InFlightPolicy(IntEnum):
    """What SESSION_CLOSE does with running operations (wire digest 2.2)."""

    DRAIN = 0
    ABORT = 1


class CloseStatus(IntEnum):
    """Answers to SESSION_CLOSE (wire digest 2.2)."""

    ACKNOWLEDGED = 0
    DRAINING = 1
    CLOSED = 2
    REJECTED = 3


class PatchStatus(IntEnum):
    """Answers to SESSION_PATCH."""

    ACCEPTED = 0
    PARTIALLY_APPLIED = 1
    REJECTED = 2


class PatchRejectReason(IntEnum):
    """Why SESSION_PATCH was refused."""

    NONE = 0
    UNSUPPORTED_FIELD = 1
    INVALID_RANGE = 2
    UNSUPPORTED_STRATEGY = 3
    INVALID_LANE_MASK = 4
    RATE_LIMITED = 5


class LossTolerance(IntEnum):
    """Loss tolerance of a submit (wire digest 3.1); the SDK sends INHERIT."""

    STRICT = 0
    BEST_EFFORT = 1
    LOW_LATENCY = 2
    FIRE_AND_FORGET = 3
    INHERIT = 0xFF
