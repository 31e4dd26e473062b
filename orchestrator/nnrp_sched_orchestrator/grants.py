"""Tokens for model calls: waiting for some to be free, and what a call is told of its share."""

from typing import Final

import anyio
from msgspec import Struct

from nnrp_sched_orchestrator.budget import Account

CALL_TOKENS: Final = 1024
"""What a call is given at first when it does not say how many tokens it may make."""
MARGIN: Final = 32
"""Tokens that a server may be late by in ending a call whose budget is spent: it looks after each
chunk and every 20 ms, and the engine ends it between two steps."""
_SMALL: Final = 4 * MARGIN
"""A share below which the margin would cost too much: it is kept to exactly, and does not grow."""


class Settlements:
    """Tells who waits for tokens that some were given back. One for a whole program."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def tell(self) -> None:
        """A call was settled."""
        self._event.set()

    async def wait(self) -> None:
        """Wait for the next settlement."""
        if self._event.is_set():
            self._event = anyio.Event()
        await self._event.wait()


class Terms(Struct, frozen=True):
    """What a call is told of its share."""

    cap: int | None = None
    """The most tokens it makes, exact: the engine's own limit. None where one may refuse it."""
    token_budget: int | None = None
    """The server's budget for now, which can be raised while it runs; None when the cap is all."""


class Grant:
    """The share of one model call. To be settled once."""

    def __init__(
        self, account: Account, asked: int | None, tokens: int, *, choices: int = 1
    ) -> None:
        """`tokens` are reserved in `account`, `asked` is what the call itself may make.

        Its choices get equal parts, so what cannot be divided among them is given back.
        """
        rest = tokens % choices
        account.settle(rest, 0)
        tokens -= rest
        self.tokens = tokens
        self.limited = account.limited
        """Whether a budget stands behind it, so that it may be cut."""
        self._account = account
        self._asked = asked
        self._choices = choices
        self._settled = False
        self._cap = tokens if tokens < _SMALL else self._most
        self._exact = True
        """Whether its cap goes to the engine."""
        self._bound_before = self._bound
        """Where the server would have ended it before it was last extended."""

    @property
    def _most(self) -> int:
        """The most it could ever get, if all other calls gave back what they have."""
        left = [most for most in (self._account.left, self._asked) if most is not None]
        most = min(left, default=self.tokens)
        return most - most % self._choices

    @property
    def terms(self) -> Terms:
        """What the call is told.

        When it has all that it could ever get, and when it has little, its cap says so exactly.
        Otherwise its budget holds until more is reserved.
        """
        if not self.limited:
            return Terms()
        cap = self._cap if self._exact else None
        return Terms(cap) if self._capped else Terms(cap, self.tokens - MARGIN)

    @property
    def _capped(self) -> bool:
        """Whether the engine's own limit is what ends it."""
        return self._exact and self.tokens >= self._cap

    @property
    def _bound(self) -> int:
        return self.tokens if self._capped else self.tokens - MARGIN

    def suit(self, longest: int | None) -> None:
        """Leave the cap to the server's budget where the model's context is not twice as long.

        `longest` is that context, in tokens. vLLM before 0.29 refuses a limit that does not fit
        there beside the prompt, which nobody here has counted.
        """
        own = self._cap < _SMALL or self._cap == self._asked
        self._exact = own or longest is None or self._cap // self._choices * 2 <= longest
        self._bound_before = min(self._bound_before, self._bound)

    def cut(self, used: int, reason: str | None) -> bool:
        """Whether an answer that ended for `reason` with so many tokens was cut by the budget."""
        if not self.limited or reason != "length":
            return False
        return used >= self._bound_before and (self._asked is None or used < self._asked)

    def extend(self, used: int) -> bool:
        """Reserve more when half of it is used and more is free; whether it has more now."""
        if not self.limited or self._settled or used * 2 < self.tokens:
            return False
        more = min(self.tokens, self._cap - self.tokens, self._account.free or 0)
        more -= more % self._choices
        if more <= 0:
            return False
        self._bound_before = self._bound
        self.tokens += self._account.reserve(more)
        return True

    def hold(self) -> None:
        """Reserve what it can get now, and no more later: its server cannot be told of more."""
        if not self.limited or self._settled:
            return
        more = min(self._most - self.tokens, self._account.free or 0)
        more -= more % self._choices
        if more > 0:
            self.tokens += self._account.reserve(more)
        self._exact = True
        self._cap = self._bound_before = self.tokens

    def lose(self, used: int) -> bool:
        """So many tokens were spent on an answer that was lost and begins anew elsewhere.

        They are replaced where others are free. Whether it has fewer now than before.
        """
        gone = min(used, self.tokens)
        self._account.settle(gone, used)
        free = self._account.free
        again = gone if free is None else min(gone, free)
        short = gone - (self._account.reserve(again) if again else 0)
        short += (self.tokens - short) % self._choices
        self._account.settle(short - gone + again, 0)
        self.tokens -= short
        self._cap -= short
        self._bound_before = min(self._bound_before, self._bound)
        return short > 0

    @property
    def enough(self) -> bool:
        """Whether there is a token for each choice."""
        return self.tokens >= self._choices

    def overrun(self, pieces: int) -> bool:
        """Whether so many pieces of output prove that its server does not keep to its share."""
        return self.limited and pieces > self.tokens + MARGIN

    @property
    def settled(self) -> bool:
        """Whether it was settled."""
        return self._settled

    def settle(self, used: int) -> None:
        """The call is over and has used so many tokens; the first settlement counts."""
        if not self._settled:
            self._settled = True
            self._account.settle(self.tokens, used)


async def grant(
    account: Account, settlements: Settlements, asked: int | None, *, choices: int = 1
) -> Grant:
    """Reserve tokens for a call, at least one for each choice, waiting while too few are free.

    Raises `BudgetExceeded` when there will never be as many.
    """
    while True:
        tokens = account.reserve(max(choices, _first_share(account, asked)), choices)
        if tokens:
            return Grant(account, asked, tokens, choices=choices)
        await settlements.wait()


def _first_share(account: Account, asked: int | None) -> int:
    """All that it asks for where there is plenty, else some to begin with."""
    free = account.free
    if asked is None or (free is not None and asked > free // 4):
        return min(CALL_TOKENS, asked or CALL_TOKENS)
    return asked
