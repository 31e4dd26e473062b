"""What a client does to its chats beside cancelling them, and what it makes of advice."""

import time
from typing import Any

import anyio
import pytest

from nnrp_sched.client import Chat, Session
from nnrp_sched.client.advice import Advice
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import ConnectionLost, LocalProtocolError
from nnrp_sched.wire import (
    CapabilityToken,
    ControlReceived,
    MessageType,
    Packet,
    encode_packet,
)
from tests.support.serving import SECONDS, body, script, scripted_session
from tests.support.wire_machines import packets
from tests.support.wire_packets import sample

pytestmark = pytest.mark.anyio

HELD: dict[str, Any] = script(text="x", hold=True)
ENDLESS: dict[str, Any] = script(text=" w", repeat=1_000_000)


async def started(session: Session, chat: dict[str, Any] = HELD, **members: Any) -> Chat:
    held = session.chat(chat, stream=True, **members)
    await anext(held)
    return held


@pytest.mark.parametrize("name", ["deadline", "expire_at"])
async def test_a_chat_is_dropped_when_its_time_is_over(name: str) -> None:
    limit: dict[str, Any] = {name: time.time() + 0.02}
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            outcome = await session.chat(HELD, stream=True, **limit).result()
    assert (outcome.status, outcome.reason) == ("dropped", "deadline_expired")


async def test_a_deadline_can_be_moved_while_the_chat_runs() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            chat = await started(session, deadline=time.time() + 3600)
            chat.set_deadline(time.time() - 1)
            assert (await chat.result()).reason == "deadline_expired"


async def test_a_chat_with_a_token_budget_completes_with_what_it_had() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            outcome = await session.chat(ENDLESS, stream=True, token_budget=5).result()
            later = await started(session, ENDLESS)
            later.set_token_budget(1)
            assert (await later.result()).status == "completed"
    assert outcome.status == "completed"
    assert 5 <= len(outcome.text.split()) <= 7


async def test_an_abort_ends_a_chat_as_cancelled_and_a_chat_never_sent_is_not_sent() -> None:
    async with scripted_session() as (served, session):
        with anyio.fail_after(SECONDS):
            outcome = await (await started(session)).abort("enough")
            unsent = await session.chat(HELD).abort()
            assert len(served.server.admission) == 0
    assert (outcome.status, outcome.reason) == ("cancelled", "peer_abort")
    assert unsent.reason == "never submitted"


@pytest.mark.parametrize("now", [True, False])
async def test_a_chat_gives_way_to_a_newer_one(now: bool) -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            older, newer = await started(session), session.chat(body())
            older.supersede(newer)  # Not submitted yet: nothing happens.
            newer = await started(session)
            older.supersede(newer, now=now, reason="next turn")
            outcome = await older.result()
            await newer.cancel()
    assert (outcome.status, outcome.reason) == ("dropped", "next turn")


async def test_what_is_said_of_a_chat_that_has_ended_is_not_sent() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            chat = session.chat(body())
            outcome = await chat.result()
            chat.set_deadline(1)
            chat.set_token_budget(1)
            assert await chat.abort() == outcome


async def test_a_session_knows_what_it_negotiated() -> None:
    wanted = [CapabilityToken.PROGRESS_PARTIAL, CapabilityToken.BUDGET_UPDATE]
    async with scripted_session(ScriptedEngine(policy="fcfs")) as (_, session):
        with anyio.fail_after(SECONDS):
            assert session.negotiated == frozenset()
            assert await session.negotiate([*wanted, "object.delta"]) == set(wanted)
            # Priorities mean nothing to an engine that orders its queue by arrival.
            assert await session.negotiate([CapabilityToken.PRIORITY_UPDATE]) == frozenset()
            assert session.negotiated == frozenset()
            with pytest.raises(LocalProtocolError):
                await session.negotiate(["ä"])


async def test_a_negotiation_of_a_lost_session_does_not_wait() -> None:
    async with scripted_session() as (served, session):
        with anyio.fail_after(SECONDS):
            await served.server.drain(0)
            with pytest.raises(ConnectionLost):
                while True:
                    await session.negotiate([CapabilityToken.PROGRESS_PARTIAL])


# --- advice ---------------------------------------------------------------------------------------


class _Gate:
    """Stands for a session: keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int | None]] = []
        self.places = self

    def grant(self, window: int) -> None:
        self.told.append(("grant", window))

    def press(self, retry_after_ms: int) -> None:
        self.told.append(("press", retry_after_ms))

    def pause(self) -> None:
        self.told.append(("pause", None))

    def note_retry(self, retry_after_ms: int) -> None:
        self.told.append(("retry", retry_after_ms))

    def note_stage(self, frame_id: int, stage: int) -> None:
        self.told.append(("stage", stage))


def heard(*messages: Packet) -> list[tuple[str, int | None]]:
    """What two sessions are told of some messages; the second only of the connection's."""
    one, other = _Gate(), _Gate()
    sessions: Any = {7: [one], 0: [one, other]}
    advice = Advice(lambda session_id: sessions.get(session_id, []))
    for message in messages:
        (packet,) = packets(encode_packet(message))
        advice.take(ControlReceived(packet, packet.session_id, packet.frame_id))
    assert other.told in ([], one.told)
    return one.told


M = MessageType


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([sample(M.CREDIT_UPDATE, level=0, credit_window=3)], [("grant", 3)]),
        ([sample(M.CREDIT_UPDATE, level=0, credit_window=0)], [("press", 0)]),
        ([sample(M.BACKPRESSURE, level=1, credit_window=2)], [("grant", 2)]),
        ([sample(M.BACKPRESSURE, level=2, retry_after_ms=9)], [("press", 9)]),
        ([sample(M.BACKPRESSURE, level=3)], [("pause", None)]),
        ([sample(M.BACKPRESSURE, level=2, flags=1)], [("press", 0)]),
        ([sample(M.BACKPRESSURE, level=2, flags=2, scope_id=901)], []),
        ([sample(M.BACKPRESSURE, level=2, session_id=8)], []),
        ([sample(M.FLOW_UPDATE)], [("grant", 2)]),
        ([sample(M.FLOW_UPDATE, flags=0)], []),
        ([sample(M.FLOW_UPDATE, reason=2)], [("pause", None)]),
        ([sample(M.FLOW_UPDATE, level=2, flags=2, retry_after_ms=4)], [("press", 4)]),
        (
            [sample(M.FLOW_UPDATE, session_id=0, scope=0, session_credit=0, connection_credit=5)],
            [("grant", 5)],
        ),
        (
            [sample(M.FLOW_UPDATE, scope=2, session_credit=0, operation_id=901)],
            [],
        ),
        (
            [
                sample(M.FLOW_UPDATE, credit_epoch=5),
                sample(M.FLOW_UPDATE, credit_epoch=4, reason=2),
                sample(M.FLOW_UPDATE, credit_epoch=5, session_credit=1),
            ],
            [("grant", 2), ("grant", 1)],
        ),
        ([sample(M.RESULT_HINT, retry_after_ms=6)], [("retry", 6)]),
        ([sample(M.RETRY_AFTER, retry_after_ms=6)], [("retry", 6)]),
        ([sample(M.PROGRESS)], [("stage", 5)]),
        ([sample(M.TRACE_CONTEXT, trace_id=0)], []),
    ],
)
def test_advice_reaches_the_sessions_it_is_about(
    messages: list[Packet], told: list[tuple[str, int | None]]
) -> None:
    assert heard(*messages) == told
