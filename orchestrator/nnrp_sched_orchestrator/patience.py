"""A call that a full server has refused: whether it is worth while to come again, and when. Pure.

A pool asks a server for no more than it was told to, but others ask the same server, and what they
took may not have been told yet. Nothing ran, so the call can wait like those that were not asked.
"""

from typing import Final

from nnrp_sched.client import Outcome
from nnrp_sched.errors import ProfileError

REFUSALS: Final = 10
"""How often a call is refused for lack of room before it fails."""
LONGEST_SECONDS: Final = 30.0
"""The longest wait that a server can ask for; one that wants more has told it with the refusal."""
_SHORTEST_SECONDS: Final = 0.01
"""The first wait at least; each further one is at least twice as long, so that a server that
always says now is not asked ten times in a moment."""
_NO_ROOM: Final = "adapter_operation_limit"


class Patience:
    """What one call has left of it."""

    def __init__(self) -> None:
        self._refusals = 0

    def seconds(self, refusal: ProfileError) -> float | None:
        """How long to wait before the call is made again; None when it is to fail."""
        told = (refusal.diagnostics or {}).get("retry_after_ms")
        if refusal.code != _NO_ROOM or not isinstance(told, int | float):
            return None
        self._refusals += 1
        if self._refusals >= REFUSALS:
            return None
        least = _SHORTEST_SECONDS * 2 ** (self._refusals - 1)
        wanted = max(told / 1000, least)
        return wanted if wanted <= LONGEST_SECONDS else None


def refusal_of(outcome: Outcome) -> ProfileError:
    """The error that a server ended a call with, and its word on when to try again."""
    assert outcome.error is not None
    error, after = outcome.error, outcome.retry_after_ms
    diagnostics = None if after is None else {"retry_after_ms": after}
    return ProfileError(error.code, error.message, error_type=error.type, diagnostics=diagnostics)
