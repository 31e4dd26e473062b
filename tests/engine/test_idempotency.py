"""A key on a real vLLM: a lost connection's request is joined by its retry, or aborted in time."""

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.profile import decode_event
from nnrp_sched.server import ServerLimits
from nnrp_sched.wire import PartialReceived
from nnrp_sched_patches.launch import Serving
from tests.support.raw_peer import RawPeer
from tests.support.serving import InMemory, scripted_server
from tests.support.vllm_chats import body

pytestmark = pytest.mark.anyio

SECONDS = 120
TOKENS = 150
CHAT = body("Count.", max_tokens=TOKENS, ignore_eos=True)
KEYED = {"idempotency_key": "count"}


async def lost(served: InMemory, records: list[OperationRecord]) -> list[bytes]:
    """Submit with the key on a connection that is lost after five events; the events."""
    peer = RawPeer(served.dial())
    session_id = await peer.open()
    chat = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    await peer.submit(session_id, chat, request_id="first", extensions=KEYED)
    heard: list[bytes] = []
    while len(heard) < 5:
        event = await peer.next_event()
        if isinstance(event, PartialReceived):
            heard.append(event.body)
    await peer.carrier.aclose()
    while not records:
        await checkpoint()
    return heard


async def test_a_retry_after_a_lost_connection_joins_the_one_request_of_the_engine(
    serving: Serving,
) -> None:
    records: list[OperationRecord] = []
    with anyio.fail_after(SECONDS):
        async with (
            scripted_server(serving.engine, observers=[records.append]) as served,
            served.connect() as connection,
            connection.session() as session,
        ):
            heard = await lost(served, records)
            retry = session.chat(
                CHAT | {"stream_options": {"include_usage": True}},
                stream=True,
                request_id="second",
                idempotency_key="count",
            )
            events = [await anext(retry)]
            snapshot = await session.queue()
            events += [event async for event in retry]
            outcome = retry.outcome
    assert [row.id for row in snapshot.operations] == [retry.name]
    assert events[:5] == [decode_event(document) for document in heard]
    assert outcome is not None
    assert outcome.status == "completed"
    assert outcome.body is not None
    assert "first" in outcome.body["id"]
    assert outcome.usage is not None
    assert outcome.usage["completion_tokens"] == TOKENS
    first, second = records
    assert first.abort is not None
    assert first.abort.receipt is not None
    assert (first.abort.receipt.accepted, first.abort.receipt.state) == (False, "running")
    assert second.timings.scheduled is not None
    assert second.timings.scheduled < first.ended
    assert serving.engine.ledger.live == []


async def test_after_the_grace_the_engine_is_idle(serving: Serving) -> None:
    records: list[OperationRecord] = []
    limits = ServerLimits(key_grace_seconds=0.2)
    with anyio.fail_after(SECONDS):
        async with scripted_server(serving.engine, limits, [records.append]) as served:
            await lost(served, records)
            assert len((await serving.engine.queue()).operations) == 1
            while (await serving.engine.queue()).operations:
                await checkpoint()
            while len(served.server.keys) or len(served.server.admission):
                await checkpoint()
    assert serving.engine.ledger.live == []
