"""The times of one piece of work."""

import time
from collections.abc import Callable

from nnrp_sched_orchestrator.records import StreamTimings


def milliseconds() -> float:
    """Now, on this process's monotonic clock."""
    return time.monotonic_ns() / 1e6


class Stopwatch:
    """Marks moments; each mark counts once."""

    def __init__(self, clock: Callable[[], float] = milliseconds) -> None:
        """`clock` gives milliseconds that only rise; the work is created now."""
        self._clock = clock
        self.created = clock()
        self.submitted: float | None = None
        self.first_event: float | None = None
        self.finished: float | None = None
        self.engine_queue_ms: float | None = None
        self._queued_since: float | None = None
        self._queue_ms = 0.0

    def queue(self) -> None:
        """It begins to wait in our own queue; a retried call does so again."""
        self._queued_since = self._clock()

    def unqueue(self) -> None:
        """It waits there no longer."""
        if self._queued_since is not None:
            self._queue_ms += self._clock() - self._queued_since
            self._queued_since = None

    def submit(self) -> None:
        """It leaves for whoever runs it."""
        if self.submitted is None:
            self.submitted = self._clock()

    def event(self) -> None:
        """Something has come of it."""
        if self.first_event is None:
            self.first_event = self._clock()

    def finish(self) -> None:
        """It is over."""
        if self.finished is None:
            self.unqueue()
            self.finished = self._clock()

    @property
    def timings(self) -> StreamTimings:
        """The moments so far."""
        waiting = 0.0 if self._queued_since is None else self._clock() - self._queued_since
        return StreamTimings(
            created=self.created,
            submitted=self.submitted,
            first_event=self.first_event,
            finished=self.finished,
            queue_ms=self._queue_ms + waiting,
            engine_queue_ms=self.engine_queue_ms,
        )
