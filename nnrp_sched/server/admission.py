"""What may start in a server: a bound on its operations, and identifiers that are unique in it."""

import itertools
from collections.abc import Callable

from nnrp_sched.profile import profile_error
from nnrp_sched.server.load import Load

_SESSION_IDS = 2**32 - 1


class Admission:
    """The live operations of one server by engine request id, and its next session id."""

    def __init__(self, max_operations: int, max_control_operations: int) -> None:
        self.draining = False
        """Set once the server goes down: no session and no operation starts any more."""
        self.limit = max_operations
        """Operations that may run at once."""
        self.load = Load()
        self._was_full = False
        self._watchers: set[Callable[[], None]] = set()
        self._max_control_operations = max_control_operations
        self._control_operations = 0
        self._live: dict[str, int] = {}
        self._renamed = itertools.count(1)
        self._sessions = itertools.count()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def free(self) -> int:
        """Operations that may still start."""
        return self.limit - len(self._live)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` when the last place was taken, and when there is room again."""
        self._watchers.add(changed)

    def unwatch(self, changed: Callable[[], None]) -> None:
        """Call it no more."""
        self._watchers.discard(changed)

    @property
    def control_operations(self) -> int:
        """Control requests running now."""
        return self._control_operations

    def admit_control(self) -> None:
        """Take a place for a control request; raises `ProfileError` when all are taken."""
        if self._control_operations >= self._max_control_operations:
            raise profile_error(
                "adapter_operation_limit",
                f"this server runs {self._max_control_operations} control requests at once",
            )
        self._control_operations += 1

    def release_control(self) -> None:
        """Give the place of a control request back."""
        self._control_operations -= 1

    def next_session_id(self) -> int:
        """A session id this server did not use before, 1 to 2**32 - 1.

        Unique in the server, not only on the connection, because peers exist that mix up recycled
        ids (interop notes, bug 6).
        """
        return next(self._sessions) % _SESSION_IDS + 1

    def admit(self, wished: str) -> str:
        """Take a place and return the request id to use; raises `ProfileError` when all are taken.

        The id is the wished one unless that is in use: a client's `request_id` is a label and need
        not be unique (wire digest 6, 40); the engine's handle must be.
        """
        if self.free <= 0:
            raise profile_error(
                "adapter_operation_limit",
                f"this server runs {self.limit} operations at once; retry later",
            )
        request_id = wished
        while request_id in self._live:
            request_id = f"{wished}-{next(self._renamed)}"
        self._live[request_id] = 1
        if not self.free:
            self._was_full = True
            self._tell()
        return request_id

    def hold(self, request_id: str) -> None:
        """Keep an id and its place until they were released once more."""
        self._live[request_id] += 1

    def release(self, request_id: str) -> None:
        """Give the place back, or the part of one that is held."""
        self._live[request_id] -= 1
        if self._live[request_id]:
            return
        del self._live[request_id]
        self.load.released()
        if self._was_full and self.free >= max(1, self.limit // 8):
            self._was_full = False
            self._tell()

    def _tell(self) -> None:
        for changed in list(self._watchers):
            changed()
