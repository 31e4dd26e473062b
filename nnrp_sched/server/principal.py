"""Who may see and end what.

Whoever can reach the server from its own host (unix socket, loopback, the same process) operates
it: they see and end every request, those of HTTP clients too. Everybody else sees and ends only
the operations of their own connection; of others they learn nothing, not even that they exist. A
proxy on the server's host makes operators of all its clients.
"""

from collections.abc import Callable, Collection

import msgspec
from msgspec import Struct

from nnrp_sched.profile.scheduling import QueuedRequest, QueueSnapshot


def operation_name(session_id: int, frame_id: int) -> str:
    """The id of an operation as users see it; session ids are unique in a server."""
    return f"{session_id}.{frame_id}"


class Principal(Struct, frozen=True):
    """The peer of one connection."""

    operator: bool
    session_ids: Callable[[], Collection[int]]
    """The connection's sessions now."""
    identity: str = ""
    """The same for all connections of one peer: empty for whoever operates the server, else the
    client's certificate or its host (`transport.Carrier.peer`)."""

    def owns(self, name: str) -> bool:
        """Whether an NNRP operation is this connection's."""
        session, _, _ = name.partition(".")
        return session.isdecimal() and int(session) in self.session_ids()

    def sees(self, name: str) -> bool:
        """Whether this peer may know of an NNRP operation and end it."""
        return self.operator or self.owns(name)

    def view(self, snapshot: QueueSnapshot) -> QueueSnapshot:
        """The part of a snapshot for this peer; the counts and positions stay the engine's."""
        if self.operator:
            return snapshot
        return msgspec.structs.replace(
            snapshot, operations=tuple(row for row in snapshot.operations if self._sees_row(row))
        )

    def _sees_row(self, row: QueuedRequest) -> bool:
        return row.source == "nnrp" and self.owns(row.id)
