"""The state of one session, the same on both ends (wire digest 2.2)."""

from enum import Enum, auto

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire.enums import ErrorCode, ErrorScope
from nnrp_sched.wire.operation import Operation, Step
from nnrp_sched.wire.recent import RecentKeys


class SessionPhase(Enum):
    """Where a session stands. It is kept from its acknowledgement until it is closed."""

    OPEN = auto()
    CLOSING = auto()
    """SESSION_CLOSE was sent: what runs may finish, nothing new starts."""
    CLOSED = auto()


class SessionStep(Enum):
    """What can happen to a session."""

    SUBMIT = auto()
    CLOSE = auto()
    """SESSION_CLOSE."""
    REOPEN = auto()
    """SESSION_CLOSE_ACK rejected."""
    END = auto()
    """SESSION_CLOSE_ACK closed."""
    FAIL = auto()
    """An ERROR of session scope."""


TRANSITIONS: dict[SessionPhase, dict[SessionStep, SessionPhase]] = {
    SessionPhase.OPEN: {
        SessionStep.SUBMIT: SessionPhase.OPEN,
        SessionStep.CLOSE: SessionPhase.CLOSING,
        SessionStep.FAIL: SessionPhase.CLOSED,
    },
    SessionPhase.CLOSING: {
        SessionStep.REOPEN: SessionPhase.OPEN,
        SessionStep.END: SessionPhase.CLOSED,
        SessionStep.FAIL: SessionPhase.CLOSED,
    },
    SessionPhase.CLOSED: {},
}
"""What may follow what. A step that is not listed is illegal and changes nothing."""


class Session:
    """A session and its operations in flight.

    Nothing of an operation outlives its terminal but its id among the last `tombstones` ones.
    """

    __slots__ = (
        "by_operation",
        "capabilities",
        "finished",
        "last_frame_id",
        "last_operation_id",
        "max_in_flight",
        "operations",
        "phase",
        "session_id",
    )

    def __init__(self, session_id: int, *, max_in_flight: int, tombstones: int) -> None:
        self.session_id = session_id
        self.phase = SessionPhase.OPEN
        self.max_in_flight = max_in_flight
        self.operations: dict[int, Operation] = {}
        """By frame id: everything without a terminal."""
        self.by_operation: dict[int, Operation] = {}
        """By operation id; a submit that repeats an id is not in here."""
        self.finished = RecentKeys(tombstones)
        """Ids of finished operations."""
        self.last_frame_id = 0
        """The highest frame id submitted. A lower one that is not in flight is finished."""
        self.last_operation_id = 0
        self.capabilities: frozenset[str] = frozenset()
        """What both ends agreed on; nothing before a negotiation."""

    def allows(self, step: SessionStep) -> bool:
        """Whether the step is legal now."""
        return step in TRANSITIONS[self.phase]

    def take(self, step: SessionStep) -> None:
        """Go one step. Raises `LocalProtocolError` for an illegal one and changes nothing."""
        following = TRANSITIONS[self.phase].get(step)
        if following is None:
            raise LocalProtocolError(
                f"session {self.session_id}: no {step.name} in state {self.phase.name}",
                code=ErrorCode.INVALID_STATE,
                scope=ErrorScope.SESSION,
            )
        self.phase = following

    def knows_operation(self, operation_id: int) -> bool:
        """Whether the id is in flight or among the finished ones remembered."""
        return operation_id in self.by_operation or operation_id in self.finished

    def frame_is_finished(self, frame_id: int) -> bool:
        """Whether a frame id belongs to the past."""
        return 0 < frame_id <= self.last_frame_id and frame_id not in self.operations

    def add(self, operation: Operation) -> None:
        """Register a submit. Its frame id is above all before it."""
        self.operations[operation.frame_id] = operation
        self.last_frame_id = operation.frame_id
        if operation.operation_id and not self.knows_operation(operation.operation_id):
            self.by_operation[operation.operation_id] = operation
            self.last_operation_id = operation.operation_id

    def finish(self, operation: Operation, step: Step) -> None:
        """End an operation. Raises `LocalProtocolError` for an illegal ending, changing nothing."""
        operation.take(step)
        del self.operations[operation.frame_id]
        if self.by_operation.get(operation.operation_id) is operation:
            del self.by_operation[operation.operation_id]
            self.finished.add(operation.operation_id)

    def abandon(self) -> tuple[int, ...]:
        """End every operation without a message; the frame ids in the order they came."""
        frame_ids = tuple(self.operations)
        for operation in list(self.operations.values()):
            self.finish(operation, Step.FAIL)
        return frame_ids
