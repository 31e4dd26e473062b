"""How long to wait before trying again. Pure but for the dice, which can be given."""

import random
from collections.abc import Callable
from typing import Final

_MOST_DOUBLINGS: Final = 32


class Backoff:
    """Waits that double up to a limit, each shortened by up to a half by chance.

    The chance keeps many clients of one server from coming back in the same moment.
    """

    def __init__(
        self, first: float, limit: float, dice: Callable[[], float] = random.random
    ) -> None:
        """`first` and `limit` in seconds; `dice` gives numbers from 0 to 1."""
        self._first = first
        self._limit = limit
        self._dice = dice
        self.failures = 0
        """How often in a row it was asked for a wait."""

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        doubled = self._first * 2.0 ** min(self.failures, _MOST_DOUBLINGS)
        self.failures += 1
        return min(self._limit, doubled) * (1 - self._dice() / 2)

    def reset(self) -> None:
        """It went well."""
        self.failures = 0
