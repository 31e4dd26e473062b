"""What aioquic does not offer: a receive window that follows the reader, and the unsent backlog.

By itself aioquic doubles the window whenever half of it is used, whether or not anybody reads, and
buffers without limit what is sent. Both numbers are reached through its private parts; the tests
of a sender that waits for its reader fail when a new version has them elsewhere.
"""

from collections.abc import Callable
from typing import Any, Final

from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace

WINDOW_BYTES: Final = 1024 * 1024
"""How much a peer may send beyond what was read."""

UNLIMITED: Final = 1 << 60
"""The window of a single stream: the connection's alone counts, as there is only one stream."""


def follow_reader(connection: QuicConnection, taken: Callable[[], int]) -> None:
    """Let the window grow with `taken`, the bytes of the connection that were read so far."""
    private: Any = connection
    limit = private._local_max_data
    write_limits = private._write_connection_limits

    def write(builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        wanted = taken() + WINDOW_BYTES
        if wanted - limit.value >= WINDOW_BYTES // 4:
            limit.value = wanted
        # Nothing used means nothing to double.
        used, limit.used = limit.used, 0
        try:
            write_limits(builder=builder, space=space)
        finally:
            limit.used = used

    private._write_connection_limits = write


def backlog(connection: QuicConnection, stream_id: int) -> int:
    """The bytes of a stream that were handed over and not yet acknowledged."""
    private: Any = connection
    stream = private._streams.get(stream_id)
    return 0 if stream is None else len(stream.sender._buffer)
