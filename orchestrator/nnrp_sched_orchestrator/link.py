"""One endpoint: a connection that is made again whenever it is lost, and the sessions on it."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final

import anyio
import msgspec

from nnrp_sched.client import Connection, Session
from nnrp_sched.errors import ConnectionLost, NnrpSchedError, ProfileStreamError
from nnrp_sched.transport import background_tasks
from nnrp_sched.wire import CapabilityToken
from nnrp_sched_orchestrator.backoff import Backoff
from nnrp_sched_orchestrator.features import Features, features_of
from nnrp_sched_orchestrator.pool_records import EndpointHealth, LinkState, PoolSettings
from nnrp_sched_orchestrator.queue_view import QueueView
from nnrp_sched_orchestrator.slot import Slot

Connect = Callable[[str], AbstractAsyncContextManager[Connection]]
"""Opens a connection to an endpoint, for the time of a block."""

_WANTED: Final = (
    CapabilityToken.CREDIT_BACKPRESSURE,
    CapabilityToken.PROGRESS_PARTIAL,
    CapabilityToken.BUDGET_UPDATE,
)
"""What is negotiated in each session, as far as its server offers it."""

_PLACES_TO_WATCH: Final = 4
"""A watch takes one place of the session for control requests, for as long as it lasts; it must
not be the one that an abort needs."""


class Means(msgspec.Struct, frozen=True):
    """What a link needs of the world; tests give their own."""

    connect: Connect
    backoff: Callable[[], Backoff]
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    clock: Callable[[], float] = time.monotonic


class Link:
    """A connection to one endpoint with its sessions. `run` keeps it."""

    def __init__(
        self, endpoint: str, settings: PoolSettings, means: Means, changed: Callable[[], None]
    ) -> None:
        """`changed` is called whenever there may be more room, or less health."""
        self.endpoint = endpoint
        self.view = QueueView(
            per_second=settings.watches_per_second,
            seconds=settings.watch_seconds,
            backoff=means.backoff,
            clock=means.clock,
        )
        self.control: Session | None = None
        """The session for control requests, where the server declares them."""
        self.tried = anyio.Event()
        """Set once it was up, or has failed for the first time."""
        self.leases = 0
        """Leases on it that were not given back, those of lost connections included."""
        self._settings = settings
        self._means = means
        self._changed = changed
        self._slots: list[Slot] = []
        self._features = Features()
        self._backoff = means.backoff()
        self.last_error: str | None = None

    @property
    def up(self) -> bool:
        """Whether calls can be made."""
        return any(slot.alive for slot in self._slots)

    @property
    def load(self) -> int:
        """Leases on its living sessions."""
        return sum(slot.leases for slot in self._slots)

    def room(self) -> Slot | None:
        """The session with the fewest leases in which a further call starts at once."""
        if self.load >= self._settings.max_in_flight:
            return None
        able = [slot for slot in self._slots if slot.has_room]
        return min(able, key=lambda slot: slot.leases, default=None)

    def health(self, waiting: int) -> EndpointHealth:
        """How it fares, with so many calls that wait for it."""
        state: LinkState = "up" if self.up else "down" if self.last_error else "connecting"
        alive = [slot for slot in self._slots if slot.alive]
        return EndpointHealth(
            endpoint=self.endpoint,
            state=state,
            in_flight=self.leases,
            sessions=len(alive),
            pressed=bool(alive) and all(slot.pressed for slot in alive),
            waiting=waiting,
            failures=0 if self.up else self._backoff.failures,
            last_error=self.last_error,
            features=self._features,
        )

    # --- the connection -------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, and connect again, until cancelled."""
        while True:
            began = self._means.clock()
            try:
                async with self._means.connect(self.endpoint) as connection:
                    await self._serve(connection)
            except NnrpSchedError as error:
                self._fail(error)
            if self._means.clock() - began > self._settings.backoff_limit_seconds:
                self._backoff.reset()  # It held long enough: this is another failure.
            await self._means.sleep(self._backoff.next())

    async def _serve(self, connection: Connection) -> None:
        """Open the sessions and keep them until the connection is lost; raises the loss."""
        async with self._session(connection) as first:
            self._features = await self._ask(first) or Features()
            control = self._features.control
            try:
                async with background_tasks() as tasks:
                    if control:
                        self.control = first
                        if first.max_in_flight >= _PLACES_TO_WATCH:
                            tasks.start_soon(self.view.serve, first)
                        tasks.start_soon(self._probe, connection, first)
                    else:
                        tasks.start_soon(self._use, first, first)
                    for _ in range(self._settings.sessions - (not control)):
                        tasks.start_soon(self._keep_session, connection, first)
                    await first.ended.wait()
            finally:
                self.control = None
        raise first.lost or ConnectionLost("the session was closed")

    def _session(self, connection: Connection) -> AbstractAsyncContextManager[Session]:
        return connection.session(
            max_in_flight=self._settings.max_in_flight, seconds=self._settings.connect_seconds
        )

    async def _keep_session(self, connection: Connection, control: Session) -> None:
        """Keep one more session while the connection lasts."""
        backoff = self._means.backoff()
        while True:
            try:
                async with self._session(connection) as session:
                    backoff.reset()
                    await self._use(session, control)
            except NnrpSchedError as error:
                self._fail(error)
            if control.lost is not None:
                return
            await self._means.sleep(backoff.next())

    async def _use(self, session: Session, control: Session) -> None:
        """Let calls be made in a session until it ends."""
        await self._negotiate(session)
        slot = Slot(self.endpoint, session, control, self._features)
        self._slots.append(slot)
        session.places.watch(self._changed)
        self.tried.set()
        self._changed()
        try:
            await session.ended.wait()
            self.last_error = str(session.lost)
        finally:
            self._slots.remove(slot)
            self._changed()

    async def _negotiate(self, session: Session) -> None:
        """Agree on what the server offers; one that does not answer offers nothing."""
        # That the session was lost is told by its `ended`.
        with suppress(ConnectionLost):
            await session.negotiate(_WANTED, seconds=self._settings.connect_seconds)

    def _fail(self, error: NnrpSchedError) -> None:
        self.last_error = str(error)
        self.tried.set()
        self._changed()

    # --- what the server declares ---------------------------------------------------------------

    async def _ask(self, session: Session) -> Features | None:
        """What the server declares; None when it has nothing to say, or says it too late."""
        with anyio.move_on_after(self._settings.connect_seconds):
            try:
                return features_of(await session.capabilities())
            except (ProfileStreamError, msgspec.ValidationError):
                return None
            except ConnectionLost:
                if session.lost is not None:
                    raise
        return None

    async def _probe(self, connection: Connection, control: Session) -> None:
        """Close a connection whose server has stopped answering; calls on it end as lost."""
        seconds = self._settings.probe_seconds
        while True:
            await self._means.sleep(seconds)
            with anyio.move_on_after(seconds) as limit:
                try:
                    self._features = features_of(await control.capabilities())
                except (ProfileStreamError, msgspec.ValidationError):
                    continue  # Too busy for this request, say; but it answers.
                except ConnectionLost:
                    return
            if limit.cancelled_caught:
                self._fail(ConnectionLost(f"the server has not answered in {seconds:g} s"))
                await connection.aclose()
                return
