"""When all that a peer wrote in one go has been taken in."""

from typing import Final

import anyio
import anyio.lowlevel

_TURNS: Final = 2
"""In the first turn of the event loop bytes reach the carrier, in the second the reader."""
_ROUNDS: Final = 16
"""A peer that never stops sending does not keep its operations from starting."""


class Arrivals:
    """Counts what the reader of a connection took in."""

    def __init__(self) -> None:
        self._count = 0
        self._gate: anyio.Event | None = None

    def note(self) -> None:
        """The reader has something new, and handles it before its next wait."""
        self._count += 1

    async def settled(self) -> None:
        """Wait until nothing more comes in at once.

        A submit and the messages about it that were written together may arrive in pieces (wire
        digest 4.6); whoever waits here sees them all before acting. Takes no time, only turns.
        Those who wait go on in the order they came.
        """
        if self._gate is not None:
            await self._gate.wait()
            return
        gate = self._gate = anyio.Event()
        try:
            await self._quiet()
        finally:
            self._gate = None
            gate.set()

    async def _quiet(self) -> None:
        for _ in range(_ROUNDS):
            seen = self._count
            for _ in range(_TURNS):
                await anyio.lowlevel.checkpoint()
            if self._count == seen:
                return
