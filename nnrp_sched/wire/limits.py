"""What a connection machine may grow to."""

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Bounds of one connection; each is a count but the first."""

    max_packet_bytes: int = 64 * 1024 * 1024
    """Header, metadata and body together, in bytes; the SDK's ceiling (wire digest 1.1)."""
    max_sessions: int = 64
    """Sessions open or asked for at once."""
    max_in_flight: int = 1024
    """Operations in flight a session."""
    tombstones: int = 1024
    """Finished operations remembered a session, and ended sessions remembered a connection."""


DEFAULT_LIMITS = Limits()
"""The limits of a connection that was given none."""
