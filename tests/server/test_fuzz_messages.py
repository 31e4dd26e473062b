"""Each message type broken in each way against a live server that carries a healthy client.

Whatever was sent, the healthy client's results are right, and nothing of the others is left behind.
"""

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nnrp_sched.client import Session
from nnrp_sched.profile import build_envelope
from nnrp_sched.wire.enums import MessageType
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, InMemory, body, script, scripted_session
from tests.support.wire_mutations import (
    Fate,
    Ids,
    Mutation,
    mutations,
    readdressed,
    right,
    truncations,
)
from tests.support.wire_packets import raw_bytes, sample

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

M = MessageType
HELD: dict[str, Any] = script(text="x", hold=True) | {"stream": True}
IDS = Ids(7, 2, 902, 1, 901, 8)
"""What the mutations are made for; each peer's sessions have ids of their own."""
FLOOD = 2000
"""Copies of one message in one write."""
FATAL_SAMPLES = 12
"""Fatal mutations of a type that are tried on a live server, each on a connection of its own; the
wire's own tests try them all."""
by_type = pytest.mark.parametrize("kind", list(M), ids=lambda kind: kind.name)


class Arena:
    """A server, a healthy client with an operation that runs through, and peers that misbehave."""

    def __init__(self, served: InMemory, session: Session) -> None:
        self.served = served
        self._session = session
        self._chats = 0

    async def healthy(self) -> None:
        """The healthy client gets what it asks for."""
        self._chats += 1
        asked = f"question {self._chats}"
        with anyio.fail_after(SECONDS):
            outcome = await self._session.chat(body(asked), stream=True).result()
        assert (outcome.status, outcome.text) == ("completed", f"You said: {asked}")

    @asynccontextmanager
    async def peer(self) -> AsyncGenerator[tuple[RawPeer, Ids], None]:
        """A peer with two sessions; in the first a finished and a running operation."""
        peer = RawPeer(self.served.dial())
        session_id = await peer.open()
        other = await peer.open_session()
        for operation_id, chat in ((IDS.finished_operation_id, body()), (IDS.operation_id, HELD)):
            _, data = peer.wire.submit(session_id, build_envelope(chat), operation_id=operation_id)
            await peer.send(data)
            if chat is not HELD:
                await peer.until_terminal(IDS.finished_frame_id)
        try:
            yield peer, Ids(session_id, 2, 902, 1, 901, other)
        finally:
            await peer.carrier.aclose()

    async def quiet(self) -> None:
        """Wait until only the healthy client is there, with its one operation."""
        server = self.served.server
        with anyio.fail_after(SECONDS):
            while (
                len(server.connections) > 1
                or len(server.admission) > 1
                or server.admission.control_operations
            ):
                await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def arena() -> AsyncGenerator[Arena, None]:
    async with scripted_session() as (served, session):
        held = session.chat(script(text="fine", hold=True), stream=True)
        await anext(held)
        made = Arena(served, session)
        await made.healthy()
        yield made
        await made.quiet()
        await made.healthy()
        with anyio.fail_after(SECONDS):
            outcome = await held.cancel()
        assert (outcome.status, outcome.text) == ("cancelled", "fine")


async def lives(peer: RawPeer, probe_id: int) -> None:
    """The connection answers."""
    await peer.send(raw_bytes(sample(M.TRANSPORT_PROBE, probe_id=probe_id)))
    await peer.until(
        lambda packets: any(getattr(each.metadata, "probe_id", 0) == probe_id for each in packets)
    )


async def endure(made: Arena, found: list[Mutation]) -> None:
    """Mutations that end nothing, one after the other on one connection."""
    async with made.peer() as (peer, ids):
        for number, mutation in enumerate(found):
            await peer.send(readdressed(mutation.data, IDS, ids))
            await lives(peer, 1_000_000 + number)


async def provoke(made: Arena, data: bytes, fate: Fate) -> None:
    """One thing that ends its connection."""
    async with made.peer() as (peer, ids):
        await peer.send(readdressed(data, IDS, ids))
        packets = await peer.read_to_the_end()
        if fate is Fate.FATAL:
            assert [packet.message_type for packet in packets[-2:]] == [M.ERROR, M.CLOSE]


async def cut_off(made: Arena, data: bytes) -> None:
    """A peer that leaves in the middle of a message."""
    async with made.peer() as (peer, ids):
        await peer.send(readdressed(data, IDS, ids))


@by_type
async def test_a_server_and_its_healthy_client_survive_every_kind_of_wrong(
    kind: MessageType,
) -> None:
    found = list(mutations(kind, IDS))
    ending = [each for each in found if each.fate is not Fate.ALIVE]
    cuts = list(truncations(kind, IDS))
    async with arena() as made:
        await endure(made, [each for each in found if each.fate is Fate.ALIVE])
        await made.healthy()
        for mutation in ending[:: max(1, len(ending) // FATAL_SAMPLES)]:
            await provoke(made, mutation.data, mutation.fate)
        for piece in (cuts[0], cuts[38], cuts[-1], cuts[len(cuts) // 2]):
            await cut_off(made, piece)


@by_type
async def test_a_flood_of_a_message_costs_its_sender_alone(kind: MessageType) -> None:
    async with arena() as made, made.peer() as (peer, ids):
        await peer.send(readdressed(raw_bytes(right(kind, IDS)), IDS, ids) * FLOOD)
        await made.healthy()
        waiting = max(each.waiting_bytes for each in made.served.server.connections)
        assert waiting <= 2 * made.served.server.limits.send_queue_bytes + FLOOD * 200


async def test_a_flood_of_submits_and_cancels_leaves_nothing_running() -> None:
    async with arena() as made, made.peer() as (peer, ids):
        data = b""
        for number in range(200):
            frame_id, submit = peer.wire.submit(
                ids.session_id, build_envelope(HELD), operation_id=number + 1
            )
            data += submit + peer.wire.cancel(ids.session_id, frame_id)
        await peer.send(data)
        for frame_id in range(3, 203):
            await peer.until_terminal(frame_id)
        await made.healthy()


async def test_rounds_of_every_message_leave_neither_tasks_nor_objects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def left() -> tuple[int, int]:
        gc.collect()
        return len(asyncio.all_tasks()), len(gc.get_objects())

    async def rounds(made: Arena, count: int) -> None:
        for kind in list(M) * count:
            async with made.peer() as (peer, ids):
                await peer.send(readdressed(raw_bytes(right(kind, IDS)), IDS, ids))
                await made.healthy()
        await made.quiet()

    # The warning about a peer holds its connection, and pytest keeps every warning.
    caplog.set_level(logging.ERROR, "nnrp_sched")
    async with arena() as made:
        await rounds(made, 2)
        tasks, objects = left()
        await rounds(made, 5)
        tasks_then, objects_then = left()
    assert tasks_then == tasks
    assert objects_then - objects < 500
