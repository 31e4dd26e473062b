"""One answer of the engine, kept so that whoever comes later reads it from its beginning.

Pure. It is kept as the JSON of its parts: what that takes can be counted.
"""

from typing import Final

_PART_BYTES: Final = 64
"""What a part takes beside its own bytes; an answer of a million empty parts is not small."""


class Replay:
    """The parts of an answer, by their number from the first."""

    __slots__ = ("_first", "_limit", "_parts", "size", "whole")

    def __init__(self, limit: int) -> None:
        """Beyond `limit` bytes it is not kept from its beginning any more."""
        self.size = 0
        """Bytes that are kept."""
        self.whole = True
        """Whether everything is kept, from the first part on, and will be as far as known."""
        self._limit = limit
        self._first = 0
        self._parts: list[bytes] = []

    @property
    def end(self) -> int:
        """The number that the next part will have."""
        return self._first + len(self._parts)

    def __getitem__(self, number: int) -> bytes:
        """A part that is kept."""
        assert number >= self._first
        return self._parts[number - self._first]

    def append(self, part: bytes) -> None:
        """Another part came."""
        self._parts.append(part)
        self.size += len(part) + _PART_BYTES
        if self.size > self._limit:
            self.whole = False

    def give_up(self) -> None:
        """Keep it from its beginning no more, for lack of room."""
        self.whole = False

    def drop_before(self, number: int) -> None:
        """Everybody has read what stands before a part; it is kept only while all is."""
        if self.whole:
            return
        dropped = self._parts[: number - self._first]
        del self._parts[: len(dropped)]
        self._first += len(dropped)
        self.size -= sum(len(part) + _PART_BYTES for part in dropped)
