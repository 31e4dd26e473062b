"""The registries of what is said about operations and load (wire digest, sections 3.5 to 3.9)."""

from enum import IntEnum, IntFlag


class FlowScope(IntEnum):
    """Whose credit FLOW_UPDATE speaks of (wire digest 3.8)."""

    CONNECTION = 0
    SESSION = 1
    OPERATION = 2


class SchedulingFlag(IntFlag):
    """Flags of PRIORITY_UPDATE, DEADLINE and EXPIRE_AT (wire digest 3.7)."""

    DISCARD_STALE = 1
    EMIT_DROP_REASON = 2


class TraceFlag(IntFlag):
    """Flags of TRACE_CONTEXT (wire digest 3.9)."""

    SAMPLED = 1
    ERROR = 2


class ProgressStage(IntEnum):
    """Stages of PROGRESS (wire digest 3.7); `COMPLETED` is not a terminal."""

    QUEUED = 1
    ADMITTED = 2
    INPUT_RECEIVED = 3
    PREPROCESSING = 4
    EXECUTING = 5
    WAITING_DEPENDENCY = 6
    PRODUCING_PARTIAL = 7
    FINALIZING = 8
    COMPLETED = 9
    DROPPED = 0xA
    FAILED = 0xB


class FlowReason(IntEnum):
    """Why FLOW_UPDATE was sent (wire digest 3.8)."""

    GRANT = 0
    REDUCE = 1
    PAUSE = 2
    RESUME = 3
    CONGESTION = 4


class FlowFlag(IntFlag):
    """Flags of FLOW_UPDATE (wire digest 3.8)."""

    CREDIT_VALID = 1
    RETRY_AFTER_VALID = 2
    BACKGROUND_ONLY = 4
    DRAIN_IN_FLIGHT_ONLY = 8


class PressureLevel(IntEnum):
    """How much a peer is pressed for room (wire digest 3.8, 6-17)."""

    NONE = 0
    SOFT = 1
    HARD = 2
    PAUSED = 3


class PressureReason(IntEnum):
    """Why CREDIT_UPDATE or BACKPRESSURE was sent (wire digest 3.8)."""

    UNSPECIFIED = 0
    RECEIVER_QUEUE_FULL = 1
    SENDER_QUEUE_FULL = 2
    MEMORY = 3
    BANDWIDTH = 4
    COMPUTE = 5
    DEADLINE = 6
    FAIRNESS = 7
    INJECTION = 8


class ScopeFlag(IntFlag):
    """Whom CREDIT_UPDATE, BACKPRESSURE and RETRY_AFTER are about; without one, the session."""

    CONNECTION = 1
    OPERATION = 2


class BudgetChange(IntEnum):
    """What BUDGET_UPDATE's flags say, exactly one of them (wire digest 3.7)."""

    REPLACE = 1
    INCREMENT = 2


class SupersedeFlag(IntFlag):
    """Flags of SUPERSEDE (wire digest 3.7)."""

    ABORT_NOW = 1


class CapabilityFlag(IntFlag):
    """Flags of CAPABILITY_NEGOTIATION and DEGRADE_PROFILE (wire digest 3.9)."""

    HARD = 1
    DOWNGRADE_ALLOWED = 2


class HintFlag(IntFlag):
    """Flags of ROUTE_HINT and EXECUTION_HINT (wire digest 3.9)."""

    MUST_HONOR = 1
    BEST_EFFORT = 2


class RecoveryFlag(IntFlag):
    """Flags of ERROR_RECOVERABLE (wire digest 3.5)."""

    RETRYABLE = 1
    WAIT_FIRST = 2


class HintPolicy(IntEnum):
    """The budget policy a RESULT_HINT speaks of (wire digest 3.5)."""

    NONE = 0
    FULL = 1
    PARTIAL = 2
    STALE_REUSE = 3
    DROP = 4


class Congestion(IntEnum):
    """How busy a server is, in RESULT_HINT (wire digest 3.5)."""

    NONE = 0
    STEADY = 1
    ELEVATED = 2
    SATURATED = 3


class HintReason(IntEnum):
    """Why RESULT_HINT was sent (wire digest 3.5)."""

    NONE = 0
    QUEUE_FULL = 1
    SERVER_BUSY = 2
    BUDGET_EXCEEDED = 3
    SUPERSEDED = 4
