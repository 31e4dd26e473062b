"""Every bound of the server in one place."""

from msgspec import Struct


class ServerLimits(Struct, frozen=True):
    """Bounds of one server. Sizes in bytes, times in seconds."""

    max_packet_bytes: int = 64 * 1024 * 1024
    """Largest packet taken from a peer; also announced as `max_body_bytes` (wire digest 1.1)."""
    max_connections: int = 256
    max_sessions: int = 64
    """Sessions on one connection."""
    max_in_flight: int = 1024
    """Operations running at once in one session."""
    max_operations: int = 4096
    """Operations running at once in the whole server."""
    max_control_operations: int = 256
    """Control requests running at once in the whole server, apart from the others: a full server
    can still be looked at and relieved."""
    max_tool_calls: int = 64
    """Tool calls running at once in the whole server."""
    send_queue_bytes: int = 256 * 1024
    """Bytes waiting for one connection's peer before further events wait with their operations."""
    operation_queue_bytes: int = 256 * 1024
    """Bytes of events that may wait with one operation before it has to wait for its peer."""
    slow_reader_seconds: float = 10.0
    """How long an operation waits for a peer that does not read: until half of a full queue, or at
    the end all of it, is on its way. Then it is lost, and the engine's work on it stopped."""
    hello_seconds: float = 10.0
    """How long a new connection may stay silent."""
    abort_seconds: float = 5.0
    """How long an engine may take to confirm an abort before the operation ends without it."""
    control_seconds: float = 10.0
    """How long an engine may take to answer a control request; more than `abort_seconds`."""
    key_grace_seconds: float = 2.0
    """How long a call with an idempotency key goes on after the connection of its last caller was
    lost, so that a retry finds it running; 0 for not at all."""
    key_seconds: float = 60.0
    """How long the outcome of such a call is kept for a retry."""
    key_answer_bytes: int = 1024 * 1024
    """Bytes of one answer that are kept from its beginning; one that has become longer takes no
    more callers, and is not kept once it has ended."""
    max_keys: int = 8192
    """Keys in use or remembered at once in the whole server."""
    max_keys_per_principal: int = 2048
    """The same for one principal. Remembered ones give way to new ones, the oldest first; when all
    are in use, an operation with a further key is refused."""
    key_bytes: int = 64 * 1024 * 1024
    """Bytes of all answers that are kept. Remembered ones give way, the oldest first; then what
    still runs is no longer kept from its beginning."""
    key_bytes_per_principal: int = 16 * 1024 * 1024
    """The same for one principal."""
    drain_seconds: float = 30.0
    """How long running operations get when a session or the server drains."""
