"""One open session with the leases on it."""

import msgspec

from nnrp_sched.client import Session
from nnrp_sched_orchestrator.features import Features


class Slot:
    """A session for calls, and how many of them it has."""

    def __init__(
        self, endpoint: str, session: Session, control: Session, features: Features
    ) -> None:
        """`control` is the session of the same connection for control requests."""
        self.endpoint = endpoint
        self.session = session
        self.control = control
        self.features = msgspec.structs.replace(features, negotiated=session.negotiated)
        self.leases = 0

    @property
    def alive(self) -> bool:
        """Whether calls can still be made in it."""
        return self.session.lost is None

    @property
    def pressed(self) -> bool:
        """Whether its server lets nothing start for now."""
        return self.session.places.paused

    @property
    def has_room(self) -> bool:
        """Whether a further call starts at once, by what the server granted and last said.

        A lease counts before its call takes a place and after it gave it back.
        """
        places = self.session.places
        return self.alive and not places.paused and max(self.leases, places.taken) < places.capacity
