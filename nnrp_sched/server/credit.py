"""How many operations a session may still start, told to those that negotiated it (digest 3.8)."""

from collections.abc import Iterable

from nnrp_sched.server.admission import Admission
from nnrp_sched.server.session import Session
from nnrp_sched.transport import Outbox
from nnrp_sched.wire import CapabilityToken, ServerConnection


class Credits:
    """Says BACKPRESSURE when a session can start nothing more, and CREDIT_UPDATE when it can again.

    The client counts its own operations from the number it was told, so nothing needs to be said
    in between. Room is announced only when an eighth of it is there, so that a full server does
    not say one thing and the other at each operation.
    """

    def __init__(self, wire: ServerConnection, outbox: Outbox, admission: Admission) -> None:
        self._wire = wire
        self._outbox = outbox
        self._admission = admission

    def negotiated(self, session: Session) -> None:
        """The session's agreement is new: say where it stands."""
        session.pressed = None
        self.update((session,))

    def update(self, sessions: Iterable[Session]) -> None:
        """An operation started or ended somewhere: say what has changed for these sessions."""
        for session in sessions:
            if session.paused or not self._told(session):
                continue
            window = max(0, min(session.max_in_flight - len(session), self._admission.free))
            if window == 0 and not session.pressed:
                session.pressed = True
                wait = self._admission.load.retry_after_ms
                self._outbox.put(self._wire.backpressure(session.session_id, retry_after_ms=wait))
            elif session.pressed is None or (
                window >= self._enough(session) and self._holds_back(session)
            ):
                session.pressed = False
                session.told = len(session) + window
                self._outbox.put(self._wire.credit_update(session.session_id, window))

    def _holds_back(self, session: Session) -> bool:
        """Whether the client starts nothing more by what it was told.

        That is also so where the rest of the server was busy when it was told, and is no more.
        """
        return bool(session.pressed) or len(session) >= session.told

    def pause(self, sessions: Iterable[Session]) -> None:
        """The server goes down: nothing starts any more, what runs may end."""
        for session in sessions:
            if not session.paused and self._told(session):
                self._outbox.put(self._wire.pause_session(session.session_id))
            session.paused = True

    def _told(self, session: Session) -> bool:
        agreed = self._wire.capabilities(session.session_id)
        return CapabilityToken.CREDIT_BACKPRESSURE in agreed and not self._wire.closed

    def _enough(self, session: Session) -> int:
        return max(1, min(session.max_in_flight, self._admission.limit) // 8)
