"""How far an operation is, as far as somebody knows it (wire digest 3.7).

Nothing is made up: that the request came is the server's own knowledge, that output comes is seen;
waiting, admission and execution are told by the engine's scheduler, or by nobody.
"""

from collections.abc import Callable
from typing import Final

from nnrp_sched.profile.scheduling import RequestState
from nnrp_sched.wire import ProgressStage

_STAGES: Final[dict[RequestState, ProgressStage]] = {
    "waiting": ProgressStage.QUEUED,
    "blocked": ProgressStage.WAITING_DEPENDENCY,
    "running": ProgressStage.EXECUTING,
    "preempted": ProgressStage.QUEUED,
}
"""What the scheduler's states are on the wire; the others are none."""


class Progress:
    """The stages of one operation, each told once in a row."""

    __slots__ = ("_admitted", "_last", "_producing", "_tell")

    def __init__(self, tell: Callable[[ProgressStage], None]) -> None:
        self._tell = tell
        self._last: ProgressStage | None = None
        self._admitted = False
        self._producing = False

    def received(self) -> None:
        """The request is here and will be handed to the engine."""
        self._go(ProgressStage.INPUT_RECEIVED)

    def moved(self, state: RequestState) -> None:
        """The scheduler moved it."""
        stage = _STAGES.get(state)
        if stage is None:
            return
        if self._producing and state != "preempted":
            return  # Old news: output came already.
        if stage is ProgressStage.EXECUTING and not self._admitted:
            self._admitted = True
            self._go(ProgressStage.ADMITTED)
        self._producing = False
        self._go(stage)

    def producing(self) -> None:
        """An event is about to be sent."""
        if not self._producing:
            self._producing = True
            self._go(ProgressStage.PRODUCING_PARTIAL)

    def _go(self, stage: ProgressStage) -> None:
        if stage is not self._last:
            self._last = stage
            self._tell(stage)
