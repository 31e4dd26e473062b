"""What a connection needs from whatever carries its bytes."""

from typing import Protocol


class Carrier(Protocol):
    """One ordered, bounded byte stream in each direction.

    One task may receive while another sends; two tasks must not do the same at once.
    """

    @property
    def name(self) -> str:
        """`tcp`, `unix` or `memory`."""
        ...

    async def receive(self) -> bytes:
        """The next bytes, at least one; `b""` at the end of the stream, however it came about.

        A peer that vanishes (reset, broken pipe) is an end of stream too, and so is our own
        `aclose`. Never raises for the peer's doings.
        """
        ...

    async def send(self, data: bytes) -> None:
        """Hand over all of `data`, waiting while the peer reads too slowly.

        Raises `ConnectionLost` when the peer no longer takes bytes or we closed the carrier.
        """
        ...

    async def aclose(self) -> None:
        """Close both directions at once. Closing twice is allowed."""
        ...
