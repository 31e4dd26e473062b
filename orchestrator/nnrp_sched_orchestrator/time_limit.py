"""Until when an agent may go on."""

import time
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_orchestrator.budget import Account
from nnrp_sched_orchestrator.errors import DeadlineExceeded

NEVER: Final = 100 * 365 * 86_400.0
"""Seconds that nobody lives to see: such a limit is none, and infinity is one of them."""


class TimeLimit(Struct, frozen=True):
    """A moment, and whose it is."""

    owner: str
    """The path of an agent, or the id of a stream."""
    at: float
    """Seconds on the monotonic clock."""
    seconds: float
    """How long that was."""
    budget_of: Account | None = None
    """Whose budget it is; None: it is a deadline."""

    @property
    def over(self) -> bool:
        """Whether it has come."""
        return time.monotonic() >= self.at

    def error(self) -> NnrpSchedError:
        """What passing it raises."""
        if self.budget_of is not None:
            return self.budget_of.exceeded("seconds", self.seconds)
        return DeadlineExceeded(self.owner, self.seconds)


def deadline(owner: str, seconds: float | None) -> TimeLimit | None:
    """The limit of a deadline so many seconds from now; None for none.

    Raises `ValueError` for a deadline that cannot be one.
    """
    if seconds is None:
        return None
    if not seconds > 0:
        raise ValueError(f"deadline_seconds={seconds!r}: it must be positive")
    return _limit(owner, seconds)


def budget_limit(account: Account) -> TimeLimit | None:
    """The limit that a budget's seconds set to an agent that begins now; None for none."""
    seconds = account.budget.seconds
    if seconds is None:
        return None
    return _limit(account.path, seconds, account)


def _limit(owner: str, seconds: float, account: Account | None = None) -> TimeLimit | None:
    if seconds >= NEVER:
        return None
    return TimeLimit(owner, time.monotonic() + seconds, seconds, account)


def earliest(limits: Iterable[TimeLimit | None]) -> TimeLimit | None:
    """The one that comes first, if there is any."""
    return min((each for each in limits if each is not None), key=_moment, default=None)


def _moment(limit: TimeLimit) -> float:
    return limit.at
