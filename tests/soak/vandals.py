"""Peers that misbehave: everything a hostile or broken client could do, chosen at random."""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from nnrp_sched.errors import ConnectionLost, LocalProtocolError
from nnrp_sched.profile import build_control, build_envelope
from nnrp_sched.transport import Endpoint, connect_carrier
from nnrp_sched.wire import CapabilityToken
from nnrp_sched.wire.enums import MessageType
from tests.support.carriers import client_security
from tests.support.raw_peer import RawPeer
from tests.support.serving import body, script
from tests.support.wire_mutations import Ids, Mutation, mutations, readdressed

_STANDARD = Ids(7, 2, 902, 1, 901, 8)
_SECONDS = 30
_CHATS: tuple[dict[str, Any], ...] = (
    body("short"),
    script(text=" w", repeat=2000) | {"stream": True},
    script(text="held", hold=True) | {"stream": True},
    script(text="slow", repeat=50, delay_ms=2) | {"stream": True},
    script(fail_after=3, text=" w", repeat=9) | {"stream": True},
    script(fail_status=503),
    {"model": "nobody"},
)
_FLOOD = script(text="y" * 2000, repeat=100_000) | {"stream": True}


def catalogue() -> list[Mutation]:
    """Every mutation of every message type."""
    return [mutation for kind in MessageType for mutation in mutations(kind, _STANDARD)]


class Vandal:
    """One peer after the other, each with a way of its own to do wrong."""

    def __init__(self, endpoints: Sequence[Endpoint], found: list[Mutation], seed: int) -> None:
        """Each peer comes over one of `endpoints`."""
        self._endpoints = endpoints
        self._found = found
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()
        """How often each way was gone."""
        self._ways: dict[str, Callable[[RawPeer], Awaitable[None]]] = {
            "mutations": self._mutations,
            "garbage": self._garbage,
            "changed bytes": self._changed_bytes,
            "flood": self._flood,
            "silence": self._silence,
            "control": self._control,
            "no reader": self._no_reader,
            "sessions": self._sessions,
        }

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            name = self._random.choice(list(self._ways))
            endpoint = self._random.choice(self._endpoints)
            carrier = await connect_carrier(endpoint, client_security())
            peer = RawPeer(carrier)
            try:
                with anyio.fail_after(_SECONDS):
                    await self._ways[name](peer)
                self.done[name] += 1
            except ConnectionLost:
                self.done[name] += 1  # The server ended it; that is its right.
            finally:
                with anyio.CancelScope(shield=True):
                    await carrier.aclose()

    # --- ways ---------------------------------------------------------------------------------

    async def _mutations(self, peer: RawPeer) -> None:
        ids = await self._stand(peer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, peer)
            for _ in range(self._random.randint(1, 30)):
                mutation = self._random.choice(self._found)
                await peer.send(readdressed(mutation.data, _STANDARD, ids))
            await self._linger()
            tasks.cancel_scope.cancel()

    async def _garbage(self, peer: RawPeer) -> None:
        if self._random.random() < 0.5:
            await peer.open()
        await peer.send(self._random.randbytes(self._random.randint(1, 3000)))
        await self._linger()

    async def _changed_bytes(self, peer: RawPeer) -> None:
        """Right messages, in one write, with some bytes changed and cut somewhere."""
        ids = await self._stand(peer)
        chosen = self._random.sample(self._found, 5)
        data = bytearray(b"".join(readdressed(each.data, _STANDARD, ids) for each in chosen))
        for _ in range(self._random.randint(0, 6)):
            data[self._random.randrange(len(data))] = self._random.randrange(256)
        await peer.send(bytes(data[: self._random.randint(1, len(data))]))
        await self._linger()

    async def _flood(self, peer: RawPeer) -> None:
        ids = await self._stand(peer)
        mutation = self._random.choice(self._found)
        await peer.send(readdressed(mutation.data, _STANDARD, ids) * self._random.randint(2, 500))
        await self._linger()

    async def _silence(self, peer: RawPeer) -> None:
        if self._random.random() < 0.5:
            await self._stand(peer)
        await self._linger()

    async def _control(self, peer: RawPeer) -> None:
        """Legal operations with legal control messages in any order."""
        session_id = await peer.open()
        await peer.send(peer.wire.negotiate(session_id, list(CapabilityToken)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, peer)
            for number in range(1, self._random.randint(2, 30)):
                chat = self._random.choice(_CHATS)
                document = (
                    build_control("queue.watch", {"per_second": 50})
                    if self._random.random() < 0.1
                    else build_envelope(chat)
                )
                try:
                    frame_id, data = peer.wire.submit(session_id, document, operation_id=number)
                    for _ in range(self._random.randint(0, 5)):
                        data += self._said(peer, session_id, frame_id, number)
                except LocalProtocolError:
                    break  # The server ended the session under it.
                await peer.send(data)
                if self._random.random() < 0.3:
                    await self._linger()
            tasks.cancel_scope.cancel()

    def _said(self, peer: RawPeer, session_id: int, frame_id: int, number: int) -> bytes:
        wire, ids = peer.wire, (session_id, frame_id)
        if not wire.in_flight(*ids):
            return b""
        say: list[Callable[[], bytes]] = [
            lambda: wire.deadline(*ids, self._random.choice((1, 2**63, 1_700_000_000_000))),
            lambda: wire.expire_at(*ids, self._random.choice((1, 2**63))),
            lambda: wire.supersede(*ids, number + self._random.randint(1, 3)),
            lambda: wire.budget_update(*ids, self._random.randint(0, 20)),
            lambda: wire.priority_update(*ids, self._random.randint(0, 2), -3),
            lambda: wire.trace_context(*ids, 5, 6),
            lambda: wire.cancel(*ids),
            lambda: wire.abort(*ids),
        ]
        # A cancelled operation can be aborted, an aborted one neither.
        try:
            return self._random.choice(say)()
        except LocalProtocolError:
            return b""

    async def _no_reader(self, peer: RawPeer) -> None:
        session_id = await peer.open()
        for _ in range(self._random.randint(1, 4)):
            await peer.submit(session_id, _FLOOD)
        await self._linger(1.0)

    async def _sessions(self, peer: RawPeer) -> None:
        """Open, use and close sessions, sometimes over what runs."""
        session_id = await peer.open()
        for _ in range(self._random.randint(1, 10)):
            await peer.submit(session_id, self._random.choice(_CHATS))
            if self._random.random() < 0.5:
                await peer.send(peer.wire.close_session(session_id))
                session_id = await peer.open_session()
        await self._linger()

    # --- pieces -------------------------------------------------------------------------------

    async def _stand(self, peer: RawPeer) -> Ids:
        """Two sessions; in the first a finished and a running operation."""
        session_id = await peer.open()
        other = await peer.open_session()
        for operation_id, chat in ((901, body()), (902, _CHATS[2])):
            _, data = peer.wire.submit(session_id, build_envelope(chat), operation_id=operation_id)
            await peer.send(data)
        return Ids(session_id, 2, 902, 1, 901, other)

    async def _linger(self, most: float = 0.05) -> None:
        await anyio.sleep(self._random.random() * most)


async def _read(peer: RawPeer) -> None:
    while await peer.carrier.receive():
        pass
