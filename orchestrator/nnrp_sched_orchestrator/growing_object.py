"""A JSON object that comes in pieces: when is it complete? Pure."""

import re
from typing import Final

from nnrp_sched.profile.json_values import is_json_object

_MARKS: Final = re.compile(r'[\\"{}\[\]]')


class GrowingObject:
    """Text that is to become one JSON object, such as the arguments of a tool call.

    Once an object is complete nothing but white space can follow, so nobody needs to wait for more.
    Work is linear in the text.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._depth = 0
        self._in_text = False
        self._escaped = False
        self._complete = False

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._pieces)

    def add(self, piece: str) -> bool:
        """Take the next piece; whether it is the one that completes the object."""
        self._pieces.append(piece)
        if self._complete or not self._closes(piece):
            return False
        self._complete = is_json_object(self.text)
        return self._complete

    def _closes(self, piece: str) -> bool:
        """Whether the outermost bracket closes in it."""
        at, closed = 0, False
        if self._escaped and piece:
            at, self._escaped = 1, False
        while (mark := _MARKS.search(piece, at)) is not None:
            at = mark.end()
            match mark[0]:
                case "\\":
                    self._escaped = at == len(piece)
                    at += 1
                case '"':
                    self._in_text = not self._in_text
                case "{" | "[" if not self._in_text:
                    self._depth += 1
                case "}" | "]" if not self._in_text:
                    self._depth -= 1
                    closed = closed or self._depth == 0
                case _:
                    pass
        return closed
