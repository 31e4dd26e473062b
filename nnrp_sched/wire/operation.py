"""The life of one operation, the same on both ends (wire digest 2.5 and 3.6)."""

from enum import Enum, auto

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire.enums import DropReason, ErrorCode, ErrorScope, MessageType


class Phase(Enum):
    """Where an operation stands: its protocol state, refined by what was asked of it."""

    ACCEPTED = auto()
    FAULTY = auto()
    """Registered from a submit that cannot be served; only a terminal is left."""
    PARTIAL = auto()
    CANCELLING = auto()
    """CANCEL or FRAME_CANCEL was sent: what is on its way may still come."""
    ABORTING = auto()
    """ABORT was sent: no more partial results."""
    COMPLETED = auto()
    CANCELLED = auto()
    SUPERSEDED = auto()
    FAILED = auto()


class Step(Enum):
    """What can happen to an operation."""

    PARTIAL = auto()
    CANCEL = auto()
    ABORT = auto()
    RESULT = auto()
    """RESULT_PUSH."""
    DROP = auto()
    """RESULT_DROP, or RESULT_DROP_REASON with any reason but superseded."""
    SUPERSEDE = auto()
    """RESULT_DROP_REASON superseded."""
    FAIL = auto()
    """A scoped ERROR, or an end without a message."""


_ENDINGS = {
    Step.RESULT: Phase.COMPLETED,
    Step.DROP: Phase.CANCELLED,
    Step.SUPERSEDE: Phase.SUPERSEDED,
    Step.FAIL: Phase.FAILED,
}

TRANSITIONS: dict[Phase, dict[Step, Phase]] = {
    Phase.ACCEPTED: {
        Step.PARTIAL: Phase.PARTIAL,
        Step.CANCEL: Phase.CANCELLING,
        Step.ABORT: Phase.ABORTING,
        **_ENDINGS,
    },
    Phase.PARTIAL: {
        Step.PARTIAL: Phase.PARTIAL,
        Step.CANCEL: Phase.CANCELLING,
        Step.ABORT: Phase.ABORTING,
        **_ENDINGS,
    },
    Phase.CANCELLING: {
        Step.PARTIAL: Phase.CANCELLING,
        Step.CANCEL: Phase.CANCELLING,
        Step.ABORT: Phase.ABORTING,
        **_ENDINGS,
    },
    Phase.ABORTING: {
        Step.CANCEL: Phase.ABORTING,
        Step.ABORT: Phase.ABORTING,
        **_ENDINGS,
    },
    Phase.FAULTY: {**_ENDINGS},
    Phase.COMPLETED: {},
    Phase.CANCELLED: {},
    Phase.SUPERSEDED: {},
    Phase.FAILED: {},
}
"""What may follow what. A step that is not listed is illegal and changes nothing."""


def drop_step(reason: int) -> Step:
    """The step a drop reason stands for."""
    return Step.SUPERSEDE if reason == DropReason.SUPERSEDED else Step.DROP


class Operation:
    """One operation of a session, from its submit to its terminal."""

    __slots__ = (
        "control_sequence",
        "frame_id",
        "heard_sequences",
        "operation_id",
        "phase",
        "progress_sequence",
        "sequence",
        "wire_ids",
    )

    def __init__(self, frame_id: int, operation_id: int, phase: Phase = Phase.ACCEPTED) -> None:
        self.frame_id = frame_id
        self.operation_id = operation_id
        self.phase = phase
        self.sequence = 0
        """The last result_sequence sent or received."""
        self.control_sequence = 0
        """The last control_sequence sent."""
        self.progress_sequence = 0
        """The last progress_sequence sent."""
        self.heard_sequences: dict[MessageType, int] | None = None
        """The highest control_sequence received, by message type."""
        self.wire_ids = b""
        """Header and metadata ids of its partial results, ready to be sent."""

    def allows(self, step: Step) -> bool:
        """Whether the step is legal now."""
        return step in TRANSITIONS[self.phase]

    def take(self, step: Step) -> None:
        """Go one step. Raises `LocalProtocolError` for an illegal one and changes nothing."""
        following = TRANSITIONS[self.phase].get(step)
        if following is None:
            raise LocalProtocolError(
                f"frame {self.frame_id}: no {step.name} in state {self.phase.name}",
                code=ErrorCode.INVALID_STATE,
                scope=ErrorScope.FRAME,
            )
        self.phase = following

    def is_stale(self, message_type: MessageType, control_sequence: int) -> bool:
        """Whether a control message was overtaken by a later one of its type; notes it if not.

        Sequences compare within an operation and a type only, and an equal one is not stale: the
        SDK numbers every control message of an operation alike (wire digest 3.6 and 6-36).
        """
        if self.heard_sequences is None:
            self.heard_sequences = {}
        if control_sequence < self.heard_sequences.get(message_type, 0):
            return True
        self.heard_sequences[message_type] = control_sequence
        return False
