"""What a reader already has of a call that is made again, so that nothing is shown twice. Pure."""

from collections import deque
from typing import Final

import msgspec

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile import Event, OutputTextDelta, ToolCallDelta

SHOWN_LIMIT: Final = 65_536
"""Events of one call that are remembered; a call with more is not made again."""


class ReplayDiffers(NnrpSchedError):
    """The second answer is another one than the first; a reader has the beginning of the first."""


class Shown:
    """The events of one call that its reader got, over all tries.

    Text counts by what it says, not by how it was cut into pieces.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._expected: deque[Event] = deque()
        """What the current try has to repeat before anything is new."""
        self.pieces = 0
        """Pieces of output that the current try has brought, shown before or not."""
        self.overflowed = False
        """Whether there were too many to remember, so that no other try can be compared."""

    def restart(self) -> None:
        """Another try begins: all that was shown is expected again."""
        self._expected = deque(self._events)
        self.pieces = 0

    def new(self, event: Event) -> Event | None:
        """What of an event the reader does not have yet; None for nothing.

        Raises `ReplayDiffers`.
        """
        fresh: Event | None = event
        self.pieces += isinstance(event, OutputTextDelta | ToolCallDelta)
        if self._expected and isinstance(event, OutputTextDelta) and event.delta:
            fresh = self._new_text(event)
        elif self._expected:
            self._repeat(event)
            fresh = None
        if fresh is not None:
            self._remember(fresh)
        return fresh

    def _new_text(self, event: OutputTextDelta) -> OutputTextDelta | None:
        text = event.delta
        while text and self._expected:
            known = self._expected.popleft()
            if not isinstance(known, OutputTextDelta) or known.index != event.index:
                raise _difference(event, known)
            size = min(len(text), len(known.delta))
            if not size or text[:size] != known.delta[:size]:
                raise _difference(event, known)
            text = text[size:]
            if len(known.delta) > size:
                rest = msgspec.structs.replace(known, delta=known.delta[size:], openai_chunk=None)
                self._expected.appendleft(rest)
        if not text:
            return None
        return msgspec.structs.replace(event, delta=text, openai_chunk=None)

    def _repeat(self, event: Event) -> None:
        known = self._expected.popleft()
        if _content(event) != _content(known):
            raise _difference(event, known)

    def _remember(self, event: Event) -> None:
        if len(self._events) >= SHOWN_LIMIT:
            self.overflowed = True
            self._events.clear()
        if not self.overflowed:
            self._events.append(event)


def _content(event: Event) -> object:
    """What an event says, without the ids and times of the chunk it came in."""
    chunk = getattr(event, "openai_chunk", None)
    if chunk is None:
        return event
    return msgspec.structs.replace(event, openai_chunk={"choices": chunk.get("choices")})


def _difference(event: Event, known: Event) -> ReplayDiffers:
    return ReplayDiffers(
        "the call was made again after its connection was lost, and gave another answer: "
        f"{type(event).__name__} where {type(known).__name__} had come"
    )
