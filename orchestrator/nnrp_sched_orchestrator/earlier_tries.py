"""What earlier tries of a call, whose connections were lost, have left behind. Pure."""

import secrets
from typing import Final

from nnrp_sched_orchestrator.grants import Grant
from nnrp_sched_orchestrator.replay import Shown

TRIES: Final = 5
"""How often a call is made at most, the first time included, when its connections are lost."""
GOING_DOWN: Final = frozenset({"server_shutdown", "session_drain_timeout"})
"""How a server that goes down says why it dropped a call."""


class EarlierTries:
    """Where the last try may still run, so that a further one joins it, and what it has spent."""

    def __init__(self, key: str | None) -> None:
        """`key` is the call's idempotency key."""
        self.key = key
        self._endpoint: str | None = None
        self._tokens = 0

    def lost(self, endpoint: str | None, shown: Shown) -> None:
        """A try was lost, with what had come of it; with no endpoint it has ended for certain."""
        tokens = shown.pieces
        joined = endpoint is not None and endpoint == self._endpoint
        self._tokens = max(tokens, self._tokens) if joined else tokens
        self._endpoint = endpoint

    def leave_behind(self, endpoint: str, share: Grant) -> bool:
        """The next try goes there: what was spent elsewhere is gone from the call's share.

        False when too little of it is left.
        """
        if self._endpoint == endpoint:
            return True
        spent, self._tokens, self._endpoint = self._tokens, 0, None
        if spent and share.lose(spent):
            # A key stands for one body, and a smaller share makes another one.
            self.key = self.key and secrets.token_hex(16)
        return share.enough
