"""The token that a client says in the auth bytes of its CLIENT_HELLO (wire digest 2.1, 6-21).

The hello rather than SESSION_OPEN: a connection is one peer, and a stranger is turned away before
anything is kept for it. The SDK sends no auth bytes and is refused by a server that wants a token;
its way in is a carrier that has made sure of the peer by itself.
"""

import hmac

from msgspec import Struct

from nnrp_sched.wire.enums import ErrorCode

UNKNOWN_PEER_BYTES = 1024 * 1024
"""Largest packet of a peer that has yet to say its token."""


class Authentication(Struct, frozen=True):
    """What a server wants to hear from one client."""

    token: bytes | None = None
    """None when the server has no token."""
    known: bool = False
    """Whether the carrier has made sure of the peer, which may then say what it likes."""

    @property
    def needed(self) -> bool:
        """Whether the client has to say the token."""
        return self.token is not None and not self.known

    def fault(self, offered: bytes) -> tuple[ErrorCode, str] | None:
        """Why a client with these auth bytes is not let in, or None."""
        if self.token is None:
            if offered:
                return ErrorCode.UNSUPPORTED_CAPABILITY, "this server takes no token"
        elif not self.known and not hmac.compare_digest(offered, self.token):
            wrong = "the token is not this server's" if offered else "this server wants a token"
            return ErrorCode.AUTH_FAILED, wrong
        return None


OPEN = Authentication()
"""For a server without a token."""
