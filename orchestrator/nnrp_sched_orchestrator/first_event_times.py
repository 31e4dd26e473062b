"""How long calls took until their first event: by that a second copy is sent, or not."""

import math
from collections import deque
from typing import Final

from nnrp_sched_orchestrator.records import StreamTimings

_WINDOW: Final = 512
_ENOUGH: Final = 20


class FirstEventTimes:
    """The last observed times, in seconds. Not for ever: what was true an hour ago is forgotten."""

    def __init__(self, *, window: int = _WINDOW, enough: int = _ENOUGH) -> None:
        """Keep the last `window` times; with fewer than `enough` nothing is known."""
        if not 0 < enough <= window:
            raise ValueError(f"enough={enough!r} must be from 1 to window={window!r}")
        self._times: deque[float] = deque(maxlen=window)
        self._enough = enough

    def __len__(self) -> int:
        return len(self._times)

    def observe(self, timings: StreamTimings) -> None:
        """A call's times; one that has no first event tells nothing."""
        if timings.first_event is not None:
            self._times.append((timings.first_event - timings.created) / 1000)

    def quantile(self, share: float) -> float | None:
        """The time within which this share of the calls had an event; None when not known.

        One of the observed times, the smallest that is not exceeded by more than the rest. Raises
        `ValueError` for a share that is not between 0 and 1.
        """
        if not 0 < share < 1:
            raise ValueError(f"share={share!r} is not between 0 and 1")
        if len(self._times) < self._enough:
            return None
        return sorted(self._times)[math.ceil(share * len(self._times)) - 1]
