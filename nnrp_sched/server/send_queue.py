"""What waits for one connection's peer: a bounded queue for each operation, served in turns.

A connection is one ordered stream of bytes, so a peer that reads slowly makes all its operations
wait. None of them may fill what the others need, though: the connection's own queue (the outbox)
stays short, and whatever finds it full waits with its operation.
"""

from collections import deque

import anyio

from nnrp_sched.transport import Outbox


class OperationQueue:
    """Events of one operation that wait for room in the outbox, in order."""

    __slots__ = ("_changed", "_documents", "size")

    def __init__(self) -> None:
        self.size = 0
        self._documents: deque[bytes] = deque()
        self._changed: anyio.Event | None = None

    def __len__(self) -> int:
        return len(self._documents)

    def append(self, document: bytes) -> None:
        """Add an event."""
        self._documents.append(document)
        self.size += len(document)

    def pop(self) -> bytes:
        """Take the oldest event out."""
        document = self._documents.popleft()
        self.size -= len(document)
        self._notify()
        return document

    def clear(self) -> None:
        """Forget what waits: its operation has ended."""
        self._documents.clear()
        self.size = 0
        self._notify()

    async def at_most(self, size: int, seconds: float) -> bool:
        """Wait until at most `size` bytes wait; False when that took longer than `seconds`."""
        with anyio.move_on_after(seconds):
            while self.size > size:
                if self._changed is None:
                    self._changed = anyio.Event()
                await self._changed.wait()
        return self.size <= size

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


class Sender:
    """Something with events that wait."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of its events that wait."""
        raise NotImplementedError

    def send_next(self) -> bool:
        """Hand the oldest one to the outbox; whether more wait."""
        raise NotImplementedError


class SendQueues:
    """The operations of one connection that have events waiting; they take turns."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: dict[Sender, None] = {}
        self._added = anyio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def size(self) -> int:
        """Bytes that wait with all of them."""
        return sum(sender.waiting_bytes for sender in self._waiting)

    def add(self, sender: Sender) -> None:
        """A sender has events waiting; adding it again changes nothing."""
        self._waiting.setdefault(sender)
        self._added.set()

    def remove(self, sender: Sender) -> None:
        """A sender's events are not to be sent any more."""
        self._waiting.pop(sender, None)

    async def run(self) -> None:
        """Send whenever there is room, until cancelled."""
        while True:
            await self._added.wait()
            self._added = anyio.Event()
            while self._waiting:
                await self._outbox.wait_below(self._outbox.limit)
                self._take_turns()

    def _take_turns(self) -> None:
        while self._waiting and not self._outbox.full:
            sender = next(iter(self._waiting))
            del self._waiting[sender]
            if sender.send_next():
                self._waiting[sender] = None
