"""What a connection needs from whatever carries its bytes."""

from collections.abc import Callable
from typing import Protocol


class Carrier(Protocol):
    """One ordered, bounded byte stream in each direction.

    One task may receive while another writes; two tasks must not do the same at once.
    """

    @property
    def name(self) -> str:
        """`tcp`, `tls`, `unix`, `websocket`, `quic` or `memory`."""
        ...

    @property
    def same_host(self) -> bool:
        """Whether the peer is certainly on this host: unix socket, loopback address, memory."""
        ...

    @property
    def authenticated(self) -> bool:
        """Whether the carrier itself has made sure that the peer may come in.

        By a client certificate, by the user at the other end of a unix socket, or by a token in a
        WebSocket's request.
        """
        ...

    @property
    def peer(self) -> str:
        """Who is at the other end, the same for all its connections.

        A fingerprint of the certificate that was asked for and verified, else the host's address;
        empty where there is neither.
        """
        ...

    @property
    def problem(self) -> str:
        """Why the stream ended, where the carrier knows more than that it did; else empty."""
        ...

    async def receive(self) -> bytes:
        """The next bytes, at least one; `b""` at the end of the stream, however it came about.

        A peer that vanishes (reset, broken pipe) is an end of stream too, and so is our own
        `aclose`. Never raises for the peer's doings.
        """
        ...

    async def deliver(self, sink: Callable[[bytes], None]) -> None:
        """Call `sink` with all further bytes as they arrive, until the end of the stream.

        For a reader that never has to make the peer wait: it saves the task switch of `receive`.
        What `sink` raises ends the delivery and leaves here.
        """
        ...

    def write(self, data: bytes) -> bool:
        """Hand over all of `data` at once, without a task switch.

        False when the peer reads too slowly: write nothing more before `drained` returned. On a
        connection that has ended this does nothing; its end is `receive`'s to tell.
        """
        ...

    async def drained(self) -> None:
        """Wait until there is room for more, or the connection has ended."""
        ...

    async def send(self, data: bytes) -> None:
        """`write` and `drained` in one. Raises `ConnectionLost` when the connection has ended."""
        ...

    async def aclose(self) -> None:
        """Close both directions at once. Closing twice is allowed."""
        ...
