"""What a pool is told and what it tells: settings, the health of endpoints, answers to aborts."""

from typing import Literal

from msgspec import Struct

from nnrp_sched.profile.scheduling import AbortReceipt
from nnrp_sched.transport import ClientSecurity
from nnrp_sched_orchestrator.features import Features

LinkState = Literal["connecting", "up", "down"]


class PoolSettings(Struct, frozen=True):
    """Bounds of one pool. Times in seconds."""

    sessions: int = 2
    """Sessions for calls on each endpoint; one more is for control requests."""
    max_in_flight: int = 64
    """Calls at once on one endpoint; what does not fit waits here, in the fair queue, and not in
    the server's, which serves first who came first."""
    queue_limit: int = 1024
    """Calls that may wait."""
    connect_seconds: float = 10.0
    """For a connection, its hello, and each session and negotiation on it."""
    start_seconds: float = 0.0
    """How long opening the pool keeps trying while nobody answers; with 0 each endpoint is tried
    once."""
    unavailable_seconds: float = 30.0
    """How long calls wait while no endpoint can be reached."""
    backoff_seconds: float = 0.1
    """The first wait before connecting again; each further one is up to twice as long."""
    backoff_limit_seconds: float = 10.0
    probe_seconds: float = 15.0
    """How often a server that declares control requests is asked for a sign of life, and how long
    it has for it; then its connection is given up."""
    abort_seconds: float = 5.0
    """How long a server may take to answer an abort."""
    affinity_limit: int = 4096
    """Affinity keys that are remembered; the one unused for longest is forgotten first."""
    watches_per_second: float = 10.0
    """Snapshots of a server's queue, while somebody asks for places in it."""
    watch_seconds: float = 2.0
    """How long a server's queue is watched after somebody last asked."""
    security: ClientSecurity | None = None

    def __post_init__(self) -> None:
        """Raises `ValueError` for a bound that is none."""
        for name in ("sessions", "max_in_flight", "queue_limit", "affinity_limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: at least 1 is needed")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: a positive number is needed")


_POSITIVE = (
    "connect_seconds",
    "unavailable_seconds",
    "backoff_seconds",
    "backoff_limit_seconds",
    "probe_seconds",
    "abort_seconds",
    "watches_per_second",
    "watch_seconds",
)


class EndpointHealth(Struct, frozen=True):
    """How an endpoint fares."""

    endpoint: str
    state: LinkState
    in_flight: int
    """Leases on it."""
    sessions: int
    """Sessions open for calls."""
    pressed: bool
    """Whether its server lets nothing start for now, in any session."""
    waiting: int
    """Calls that wait for this endpoint, by their affinity."""
    failures: int
    """Connections in a row that failed, 0 while it is up."""
    last_error: str | None
    features: Features


class Aborted(Struct, frozen=True):
    """What became of an abort."""

    receipt: AbortReceipt
    unconfirmed: str | None = None
    """Why the scheduler itself has not confirmed it, when it has not."""
