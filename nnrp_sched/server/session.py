"""One session of a connection: the operations running in it and how it ends."""

from collections.abc import ItemsView

import anyio

from nnrp_sched.observe.record import TraceObservation
from nnrp_sched.server.ending import Ending
from nnrp_sched.server.intake import LiveOperation
from nnrp_sched.server.trace import observed
from nnrp_sched.wire import TraceContext


class Session:
    """The live operations of one session, by frame id."""

    def __init__(self, session_id: int, priority_class: int, max_in_flight: int = 1024) -> None:
        self.session_id = session_id
        self.max_in_flight = max_in_flight
        """Operations that may run in it at once."""
        self.pressed: bool | None = None
        """Whether the client was told that nothing can start; None before it was told anything."""
        self.told = 0
        """How many operations at once the client was last told that it may have."""
        self.paused = False
        """Set once the client was told that nothing starts any more."""
        self.priority_class = priority_class
        """How urgent its operations are by default."""
        self.trace: TraceObservation | None = None
        """The trace context of operations that are admitted from now on."""
        self.closing = False
        """Set once SESSION_CLOSE arrived: no operation starts any more."""
        self._operations: dict[int, LiveOperation] = {}
        self._giving_way: dict[int, dict[int, str]] = {}
        """By the operation id that is to come: the frames that end when it is there, and why."""
        self._gives_way_to: dict[int, int] = {}
        """By frame: the operation id it waits for."""
        self._idle = anyio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._operations)

    def items(self) -> ItemsView[int, LiveOperation]:
        """The live operations with their frame ids."""
        return self._operations.items()

    def get(self, frame_id: int) -> LiveOperation | None:
        """The live operation of a frame, if it has not ended."""
        return self._operations.get(frame_id)

    def add(self, frame_id: int, operation: LiveOperation, operation_id: int = 0) -> None:
        """Register an operation; it must be removed when its task ends.

        Those that were to give way to `operation_id` end.
        """
        if not self._operations:
            self._idle = anyio.Event()
        self._operations[frame_id] = operation
        for older, why in list(self._giving_way.get(operation_id, {}).items()):
            self._stay(older)
            self.supersede(older, why)

    def supersede(self, frame_id: int, why: str) -> None:
        """End an operation because a newer one takes its place."""
        operation = self._operations.get(frame_id)
        if operation is not None:
            operation.stop(Ending.SUPERSEDED, why)

    def give_way(self, frame_id: int, new_operation_id: int, why: str) -> None:
        """End an operation as soon as another one has been admitted; the last word counts."""
        self._stay(frame_id)
        self._giving_way.setdefault(new_operation_id, {})[frame_id] = why
        self._gives_way_to[frame_id] = new_operation_id

    def _stay(self, frame_id: int) -> None:
        """The frame gives way to nobody."""
        newer = self._gives_way_to.pop(frame_id, None)
        if newer is not None:
            older = self._giving_way[newer]
            del older[frame_id]
            if not older:
                del self._giving_way[newer]

    def remove(self, frame_id: int) -> None:
        """Forget an operation that has ended."""
        self._operations.pop(frame_id, None)
        self._stay(frame_id)
        if not self._operations:
            self._idle.set()

    def take_trace(self, frame_id: int, context: TraceContext) -> None:
        """A TRACE_CONTEXT came: for one operation, or with frame 0 the default from now on."""
        if not frame_id:
            self.trace = observed(context, "session")
        elif (operation := self._operations.get(frame_id)) is not None:
            operation.take_trace(context)

    def stop_all(self, ending: Ending) -> None:
        """End every operation still running."""
        for operation in list(self._operations.values()):
            operation.stop(ending)

    def stop_endless(self) -> None:
        """End the operations that no wait would see the end of."""
        for operation in list(self._operations.values()):
            if operation.endless:
                operation.stop(Ending.CLOSING)

    async def wait_idle(self, seconds: float) -> bool:
        """Wait until no operation runs; False when that took longer than `seconds`."""
        with anyio.move_on_after(seconds):
            while self._operations:
                await self._idle.wait()
        return not self._operations
