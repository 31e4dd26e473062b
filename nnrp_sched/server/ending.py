"""How an operation can be ended from outside, and what its peer is told.

Pure data: wire digest 4.6 as a table.
"""

from enum import Enum

from msgspec import Struct

from nnrp_sched.wire import DropReason, MessageType


class Ending(Enum):
    """Why an operation stops before its engine call is through."""

    CANCEL = "cancel"
    """CANCEL or FRAME_CANCEL from the peer."""
    ABORT = "abort"
    """ABORT from the peer."""
    REQUESTED = "requested"
    """A control request asked for it: operation.abort or program.cancel."""
    TIMEOUT = "timeout"
    """`nnrp.timeout_ms` is over."""
    DEADLINE = "deadline"
    """DEADLINE is over."""
    EXPIRED = "expire_at"
    """EXPIRE_AT is over."""
    SUPERSEDED = "supersede"
    """SUPERSEDE from the peer: a newer operation takes its place."""
    BUDGET = "budget"
    """The token budget is spent: the operation ends with what was produced."""
    SLOW_READER = "slow_reader"
    """The peer reads too slowly for what the operation has to say."""
    SHUTDOWN = "shutdown"
    """The server stops and the operation outlived the drain."""
    DRAIN = "drain"
    """The session closes and the operation outlived the drain time."""
    CLOSING = "closing"
    """The session or the server drains, and the operation would never end by itself."""
    SESSION = "session"
    """The session ended: closed with the abort policy, or failed."""
    LOST = "lost"
    """The connection is gone."""


class Asked(Struct, frozen=True):
    """What the peer's CANCEL or ABORT says about itself; codes of wire digest 3.5 and 3.6."""

    source_role: int
    reason: int


class Cancelled(Struct, frozen=True):
    """Ends in `response.cancelled`."""

    reason: str


class Dropped(Struct, frozen=True):
    """Ends in RESULT_DROP_REASON."""

    reason: DropReason
    diagnostic: str


class Failed(Struct, frozen=True):
    """Ends in `response.error` with a code of the profile."""

    code: str
    message: str


class Silent(Struct, frozen=True):
    """Ends without a message: there is no session left to carry one."""


Terminal = Cancelled | Dropped | Failed | Silent

TERMINALS: dict[Ending, Terminal] = {
    Ending.CANCEL: Cancelled("peer_cancelled"),
    Ending.ABORT: Dropped(DropReason.PEER_CANCELLED, "peer_abort"),
    Ending.REQUESTED: Cancelled("abort_requested"),
    Ending.TIMEOUT: Failed("request_timeout", "the request outlived its nnrp.timeout_ms"),
    Ending.DEADLINE: Dropped(DropReason.DEADLINE_EXPIRED, "deadline_expired"),
    Ending.EXPIRED: Dropped(DropReason.DEADLINE_EXPIRED, "deadline_expired"),
    Ending.SUPERSEDED: Dropped(DropReason.SUPERSEDED, "superseded"),
    Ending.BUDGET: Dropped(DropReason.BUDGET, "budget_exceeded"),
    Ending.SLOW_READER: Dropped(DropReason.BACKPRESSURE, "reader_too_slow"),
    Ending.SHUTDOWN: Dropped(DropReason.TRANSPORT_CLOSED, "server_shutdown"),
    Ending.DRAIN: Dropped(DropReason.DEADLINE_EXPIRED, "session_drain_timeout"),
    Ending.CLOSING: Cancelled("session_closing"),
    Ending.SESSION: Silent(),
    Ending.LOST: Silent(),
}

TIME_LIMITS = {
    MessageType.DEADLINE: Ending.DEADLINE,
    MessageType.EXPIRE_AT: Ending.EXPIRED,
}
"""What ends an operation when the time of a message is over."""

OVERRIDING = frozenset({Ending.SESSION, Ending.LOST})
"""Endings that take away what would have carried another ending's message."""

SOURCES: dict[Ending, str] = {
    Ending.CANCEL: "client",
    Ending.ABORT: "client",
    Ending.REQUESTED: "operator",
    Ending.TIMEOUT: "client",
    Ending.DEADLINE: "client",
    Ending.EXPIRED: "client",
    Ending.SUPERSEDED: "client",
    Ending.BUDGET: "client",
    Ending.SLOW_READER: "server",
    Ending.SHUTDOWN: "server",
    Ending.DRAIN: "server",
    Ending.CLOSING: "client",
    Ending.SESSION: "client",
    Ending.LOST: "transport",
}
"""Whose wish an ending is, where the peer's message does not name somebody itself."""
