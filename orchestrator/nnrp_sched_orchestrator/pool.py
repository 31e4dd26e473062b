"""A few shared connections and sessions that carry the calls of all agents."""

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager

from nnrp_sched.client import connect as connect_to
from nnrp_sched.errors import ConnectionLost
from nnrp_sched.profile.scheduling import AbortReceipt, QueuedRequest
from nnrp_sched.transport import background_tasks, parse_endpoint
from nnrp_sched_orchestrator.aborts import Aborts
from nnrp_sched_orchestrator.affinity import Affinity
from nnrp_sched_orchestrator.attained import Attained
from nnrp_sched_orchestrator.availability import Availability
from nnrp_sched_orchestrator.backoff import Backoff
from nnrp_sched_orchestrator.errors import EndpointsUnavailable
from nnrp_sched_orchestrator.fair_queue import FairQueue
from nnrp_sched_orchestrator.link import Connect, Link, Means
from nnrp_sched_orchestrator.pace import Pace
from nnrp_sched_orchestrator.pool_records import EndpointHealth, PoolSettings
from nnrp_sched_orchestrator.slot import Slot
from nnrp_sched_orchestrator.ticket import Ticket, Waiter


class Pool:
    """Leases of sessions, given in fair order. Made by `Pool.open`."""

    def __init__(self, endpoints: Sequence[str], settings: PoolSettings, means: Means) -> None:
        self.settings = settings
        self.aborts = Aborts(settings.abort_seconds)
        self._links = {
            endpoint: Link(endpoint, settings, means, self._on_change) for endpoint in endpoints
        }
        self._queue: FairQueue[Waiter] = FairQueue(settings.queue_limit)
        self._attained = Attained()
        self._pace = Pace()
        self._affinity = Affinity(settings.affinity_limit)
        self._availability = Availability(settings.unavailable_seconds, self._fail_waiting)
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        endpoints: str | Sequence[str],
        settings: PoolSettings | None = None,
        *,
        connect: Connect | None = None,
        means: Means | None = None,
    ) -> AsyncGenerator["Pool", None]:
        """Keep connections to these endpoints for the time of the block.

        `connect` makes connections some other way than by address, and `means` all that touches
        the world, in tests say. Raises `EndpointError`, and `EndpointsUnavailable` when none of
        them can be reached now.
        """
        settings = settings or PoolSettings()
        named = [endpoints] if isinstance(endpoints, str) else list(dict.fromkeys(endpoints))
        if not named:
            raise ValueError("a pool needs at least one endpoint")
        if means is None:
            means = _means(settings, connect or _by_address(named, settings))
        pool = cls(named, settings, means)
        async with background_tasks() as tasks:
            tasks.start_soon(pool.aborts.run)
            tasks.start_soon(pool._availability.watch)
            for link in pool._links.values():
                tasks.start_soon(link.run)
            try:
                tried = [link.tried for link in pool._links.values()]
                if not await pool._availability.first(tried, settings.start_seconds):
                    raise pool._refusal()
                yield pool
            finally:
                pool._closed = True
                pool._fail_waiting()

    # --- calls ------------------------------------------------------------------------------------

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
        waiter = Waiter(affinity)
        if self._closed or self._availability.hopeless:
            waiter.settle(self._refusal())
            return Ticket(self, waiter)
        if not len(self._queue):
            self._pace.start()
        home = self._home(affinity)
        waiter.item = self._queue.add(program, agent, waiter, weight=weight, lane=home, cost=cost)
        self._attained.add(program, agent, 0.0, weight=weight)
        self._dispatch()
        return Ticket(self, waiter)

    def charge(self, program: str, agent: str, tokens: float) -> None:
        """An agent has had so many tokens; its next calls wait for those that had fewer."""
        self._queue.charge(program, agent, tokens)
        self._attained.add(program, agent, tokens)

    async def abort(
        self, endpoint: str, names: Iterable[str], seconds: float | None = None
    ) -> dict[str, AbortReceipt]:
        """End operations by name, with all that are asked for in the same turn of the loop.

        What has no receipt was not confirmed: the server did not answer in time, is gone, or
        cannot. Prefer `Lease.abort`: a name means another operation once a server was restarted.
        """
        control = self._links[endpoint].control
        if control is None:
            return {}
        wait = self.settings.abort_seconds if seconds is None else seconds
        receipts, _ = await self.aborts.ask(control, names, wait)
        return receipts

    # --- what there is to see ---------------------------------------------------------------------

    def place(self, endpoint: str, name: str) -> QueuedRequest | None:
        """Where an operation stands in its engine, by a view that is a moment old.

        Asking keeps the view going; it is None until the first snapshot is there, and for servers
        that show no queue.
        """
        return self._links[endpoint].view.place(name)

    @property
    def endpoints(self) -> tuple[EndpointHealth, ...]:
        """How each endpoint fares."""
        return tuple(
            link.health(self._queue.waiting_in(link.endpoint)) for link in self._links.values()
        )

    @property
    def in_flight(self) -> int:
        """Leases given and not given back."""
        return sum(link.leases for link in self._links.values())

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        return len(self._queue)

    @property
    def known_keys(self) -> int:
        """Affinity keys that are remembered."""
        return len(self._affinity)

    def jain(self, agents: Collection[tuple[str, str]] | None = None) -> float:
        """Jain's index of what (program, agent) pairs, or all, have had by their entitlement."""
        return self._attained.jain(agents)

    # --- for tickets ------------------------------------------------------------------------------

    def requeue(self, waiter: Waiter) -> None:
        """It was given a session that was lost before it could use it: let it wait again."""
        item = waiter.item
        assert item is not None
        self._release(waiter)
        self._attained.add(item.program, item.agent, -item.cost)
        waiter.wait_again()
        if self._closed or self._availability.hopeless:
            waiter.settle(self._refusal())
            return
        item.lane = None
        self._queue.put_back(item)
        self._dispatch()

    def give_back(self, waiter: Waiter) -> None:
        """Take it out of the queue, or take back what it was given; once, however often called."""
        if waiter.item is not None and not self._queue.remove(waiter.item):
            self._release(waiter)
        waiter.item = None
        self._dispatch()

    def position(self, waiter: Waiter) -> int | None:
        """How many go before it."""
        return None if waiter.item is None else self._queue.position(waiter.item)

    def estimate_ms(self, waiter: Waiter) -> float | None:
        """How long it will still wait."""
        position = self.position(waiter)
        return None if position is None else self._pace.estimate_ms(position)

    # --- who gets what ----------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give what room there is to those whose turn it is."""
        while len(self._queue):
            rooms = {
                link.endpoint: slot
                for link in self._links.values()
                if (slot := link.room()) is not None
            }
            item = self._queue.take((None, *rooms)) if rooms else None
            if item is None:
                return
            home = item.lane or self._home(item.payload.affinity)
            if home is None:
                home = min(rooms, key=lambda endpoint: self._links[endpoint].load)
            elif home not in rooms:  # Its affinity was settled while it waited.
                self._queue.put_back(item)
                self._queue.move(item, home)
                continue
            self._attained.add(item.program, item.agent, item.cost)
            self._grant(item.payload, rooms[home])

    def _grant(self, waiter: Waiter, slot: Slot) -> None:
        slot.leases += 1
        self._links[slot.endpoint].leases += 1
        self._affinity.settle(waiter.affinity, slot.endpoint)
        self._pace.granted()
        waiter.settle(slot)

    def _release(self, waiter: Waiter) -> None:
        slot, waiter.slot = waiter.slot, None
        if slot is not None:
            slot.leases -= 1
            self._links[slot.endpoint].leases -= 1

    def _home(self, affinity: str | None) -> str | None:
        """The endpoint that a key belongs to, if it is healthy."""
        endpoint = self._affinity.of(affinity)
        return endpoint if endpoint is not None and self._links[endpoint].up else None

    # --- health -----------------------------------------------------------------------------------

    def _on_change(self) -> None:
        """An endpoint has more room, or has come or gone."""
        self._availability.update(any(link.up for link in self._links.values()))
        for link in self._links.values():
            if not link.up:
                self._free_lane(link.endpoint)
        self._dispatch()

    def _free_lane(self, endpoint: str) -> None:
        """Whoever waits for an endpoint that is down waits for any."""
        if self._queue.waiting_in(endpoint):
            for item in self._queue.items():
                if item.lane == endpoint:
                    self._queue.move(item, None)

    def _fail_waiting(self) -> None:
        for item in self._queue.items():
            self._queue.remove(item)
            item.payload.settle(self._refusal())

    def _refusal(self) -> ConnectionLost | EndpointsUnavailable:
        if self._closed:
            return ConnectionLost("the pool was closed")
        reasons = {
            link.endpoint: link.last_error or "no answer yet" for link in self._links.values()
        }
        return EndpointsUnavailable(self.settings.unavailable_seconds, reasons)


def _by_address(endpoints: Iterable[str], settings: PoolSettings) -> Connect:
    """Connect to endpoints as their addresses say. Raises `EndpointError` for one that is none."""
    parsed = {endpoint: parse_endpoint(endpoint) for endpoint in endpoints}
    return lambda endpoint: connect_to(
        parsed[endpoint], seconds=settings.connect_seconds, security=settings.security
    )


def _means(settings: PoolSettings, connect: Connect) -> Means:
    first, limit = settings.backoff_seconds, settings.backoff_limit_seconds
    return Means(connect, lambda: Backoff(first, limit))
