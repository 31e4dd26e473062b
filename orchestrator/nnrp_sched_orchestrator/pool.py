"""A few shared connections and sessions that carry the calls of all agents.

The interface; what is behind it is on its way.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from nnrp_sched.client import Connection
from nnrp_sched.profile.scheduling import AbortReceipt, QueuedRequest
from nnrp_sched_orchestrator.pool_records import EndpointHealth, PoolSettings
from nnrp_sched_orchestrator.ticket import Ticket

Connect = Callable[[str], AbstractAsyncContextManager[Connection]]
"""Opens a connection to an endpoint, for the time of a block."""


class Pool:
    """Leases of sessions, given in fair order. Made by `Pool.open`."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        endpoints: str | Sequence[str],
        settings: PoolSettings | None = None,
        *,
        connect: Connect | None = None,
    ) -> AsyncGenerator["Pool", None]:
        """Keep connections to these endpoints for the time of the block.

        `connect` makes connections some other way than by address, in tests say. Raises
        `EndpointError`, and `EndpointsUnavailable` when none of them can be reached now.
        """
        raise NotImplementedError
        yield cls()

    def queue(
        self,
        program: str,
        agent: str,
        *,
        weight: float = 1.0,
        affinity: str | None = None,
        cost: float = 1.0,
    ) -> Ticket:
        """Ask for a lease: `async with pool.queue(…) as lease`.

        `weight` is the program's share. The same `affinity` gets the same endpoint while that is
        healthy. `cost` are tokens known beforehand, at least 1; those that turn out later are
        `charge`d, none twice. Raises `QueueFull`.
        """
        raise NotImplementedError

    def charge(self, program: str, agent: str, tokens: float) -> None:
        """An agent has had so many tokens; its next calls wait for those that had fewer."""
        raise NotImplementedError

    async def abort(
        self, endpoint: str, names: Iterable[str], seconds: float | None = None
    ) -> dict[str, AbortReceipt]:
        """End operations by name, with all that are asked for in the same turn of the loop.

        What has no receipt was not confirmed: the server did not answer in time, is gone, or
        cannot. Prefer `Lease.abort`: a name means another operation once a server was restarted.
        """
        raise NotImplementedError

    def place(self, endpoint: str, name: str) -> QueuedRequest | None:
        """Where an operation stands in its engine, by a view that is a moment old.

        Asking keeps the view going; it is None until the first snapshot is there, and for servers
        that show no queue.
        """
        raise NotImplementedError

    @property
    def endpoints(self) -> tuple[EndpointHealth, ...]:
        """How each endpoint fares."""
        raise NotImplementedError

    @property
    def in_flight(self) -> int:
        """Leases given and not given back."""
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        raise NotImplementedError

    def jain(self) -> float:
        """Jain's index of what agents have had by their programs' weights; 1 is all alike."""
        raise NotImplementedError
