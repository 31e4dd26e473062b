"""Budgets of agents, and the accounts that keep to them. Pure: no I/O, no waiting.

Every limit of an agent counts for everything below it, so siblings share what is above them. Output
tokens are set aside before a call is made (reserved) and settled by what it used, so calls that run
at once can never be promised the same token.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from nnrp_sched_orchestrator.errors import BudgetExceeded, Limit
from nnrp_sched_orchestrator.records import Spent

_REMEMBERED: Final = 256
"""Ended agents below one whose spending is still told apart; of others only the sum is."""


class Budget(Struct, frozen=True):
    """Limits of an agent and everything below it; None is no limit."""

    tokens: int | None = None
    """Output tokens."""
    model_calls: int | None = None
    depth: int | None = None
    """Levels of agents below; 0 forbids subagents."""
    fan_out: int | None = None
    """How many agents, model calls and tool calls any one agent may have going at once."""
    seconds: float | None = None
    """Wall time from the agent's beginning."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a limit that cannot be one."""
        for name in ("tokens", "model_calls", "depth", "fan_out", "seconds"):
            value = getattr(self, name)
            kinds = (int, float) if name == "seconds" else (int,)
            if value is not None and (type(value) not in kinds or not value >= 0):
                wanted = "a number of seconds" if name == "seconds" else "a whole number"
                raise ValueError(
                    f"budget {name}={value!r}: use {wanted} from 0, or None for no limit"
                )


NO_BUDGET: Final = Budget()


class Account:
    """What one agent, and those below it, may spend and have spent."""

    def __init__(
        self,
        path: str,
        budget: Budget = NO_BUDGET,
        parent: "Account | None" = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the account of an agent below `parent`; `clock` gives seconds that only rise."""
        self.path = path
        self.budget = budget
        self.tokens = 0
        """Settled output tokens, its own and below."""
        self.reserved = 0
        """Tokens set aside for calls that have not been settled, its own and below."""
        self.model_calls = 0
        """Its own and below."""
        self._parent = parent
        self._children: dict[str, Account] = {}
        self._clock = clock
        self._began = clock()
        self._ended: float | None = None
        self._before = Spent()
        """What an ended agent of the same name has spent."""
        if parent is not None:
            parent._adopt(self)

    def lineage(self) -> Iterator["Account"]:
        """Itself and every account above it."""
        account: Account | None = self
        while account is not None:
            yield account
            account = account._parent

    def close(self) -> None:
        """The agent has ended; calls of it may still be settled."""
        if self._ended is None:
            self._ended = self._clock()

    # --- what was spent -------------------------------------------------------------------------

    @property
    def spent(self) -> Spent:
        """What it and those below it have spent."""
        until = self._clock() if self._ended is None else self._ended
        return Spent(self.tokens, self.model_calls, until - self._began)

    def spent_below(self) -> dict[str, Spent]:
        """What it and each agent below it have spent, by path."""
        found = {self.path: _sum(self._before, self.spent)}
        for child in self._children.values():
            found.update(child.spent_below())
        return found

    def _adopt(self, child: "Account") -> None:
        namesake = self._children.pop(child.path, None)
        if namesake is not None:
            child._before = _sum(namesake._before, namesake.spent)
        self._children[child.path] = child
        if len(self._children) > _REMEMBERED:
            ended = [path for path, child in self._children.items() if child._ended is not None]
            for path in ended[: len(self._children) - _REMEMBERED]:
                del self._children[path]

    # --- tokens ---------------------------------------------------------------------------------

    @property
    def limited(self) -> bool:
        """Whether its tokens are limited, here or above."""
        return any(account.budget.tokens is not None for account in self.lineage())

    @property
    def free(self) -> int | None:
        """Tokens that a call could be given now; None when there is no limit."""
        return self._least(lambda account: account.tokens + account.reserved)

    @property
    def left(self) -> int | None:
        """Tokens that are not spent, those included that are set aside; None without a limit."""
        return self._least(lambda account: account.tokens)

    def _least(self, gone: Callable[["Account"], int]) -> int | None:
        limits = [
            account.budget.tokens - gone(account)
            for account in self.lineage()
            if account.budget.tokens is not None
        ]
        return max(0, min(limits)) if limits else None

    def reserve(self, wanted: int, least: int = 1) -> int:
        """Set aside up to `wanted` tokens; how many, 0 when fewer than `least` are free.

        Without a limit that is all of them. Raises `BudgetExceeded` when no settlement of a call
        that still runs could free `least` tokens.
        """
        free = self.free
        granted = wanted if free is None else min(wanted, free)
        if granted < least:
            self._refuse_if_hopeless(least)
            return 0
        for account in self.lineage():
            account.reserved += granted
        return granted

    def settle(self, granted: int, used: int) -> None:
        """A call that had been given `granted` tokens has used `used`."""
        for account in self.lineage():
            account.reserved -= granted
            account.tokens += used

    @property
    def tightest(self) -> "Account":
        """Whose token budget, here or above, has the least left."""
        limited = [each for each in self.lineage() if each.budget.tokens is not None]
        return min(limited, key=lambda each: (each.budget.tokens or 0) - each.tokens, default=self)

    def _refuse_if_hopeless(self, least: int) -> None:
        for account in self.lineage():
            limit = account.budget.tokens
            if limit is not None and limit - account.tokens < least:
                raise account.exceeded("tokens", limit)

    # --- the other limits -----------------------------------------------------------------------

    def count_call(self) -> None:
        """A model call begins. Raises `BudgetExceeded`; it is then not counted."""
        for account in self.lineage():
            limit = account.budget.model_calls
            if limit is not None and account.model_calls >= limit:
                raise account.exceeded("model_calls", limit)
        for account in self.lineage():
            account.model_calls += 1

    def check_child(self) -> None:
        """Raises `BudgetExceeded` when there may be no agent below it."""
        for levels, account in enumerate(self.lineage(), start=1):
            limit = account.budget.depth
            if limit is not None and levels > limit:
                raise account.exceeded("depth", limit)

    def check_fan_out(self, going: int) -> None:
        """Raises `BudgetExceeded` when the agent has so many going and may not start one more."""
        for account in self.lineage():
            limit = account.budget.fan_out
            if limit is not None and going >= limit:
                raise account.exceeded("fan_out", limit)

    def exceeded(self, limit: Limit, allowed: float) -> BudgetExceeded:
        """The error that one of its own limits makes."""
        return BudgetExceeded(limit, self.path, allowed, self.spent_below())


def _sum(one: Spent, other: Spent) -> Spent:
    return Spent(
        one.tokens + other.tokens,
        one.model_calls + other.model_calls,
        one.seconds + other.seconds,
    )
