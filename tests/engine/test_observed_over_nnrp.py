"""What a client of a patched vLLM is told of its operation: stages, and at its end diagnostics."""

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.observe.diagnostics import diagnostics
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.profile import Completed, Event
from nnrp_sched.profile.events import Diagnostics
from nnrp_sched.wire import (
    CapabilitiesAgreed,
    CapabilityToken,
    ProgressStage,
    ResultDropped,
)
from nnrp_sched_patches.launch import Serving
from tests.support.full_engine import full
from tests.support.raw_peer import RawPeer
from tests.support.serving import scripted_server
from tests.support.vllm_chats import body

pytestmark = pytest.mark.anyio

SECONDS = 120
S = ProgressStage
STAGES = (S.INPUT_RECEIVED, S.QUEUED, S.ADMITTED, S.EXECUTING, S.PRODUCING_PARTIAL)


async def test_stages_and_queue_time_of_a_chat_that_had_to_wait_are_the_schedulers(
    serving: Serving,
) -> None:
    records: list[OperationRecord] = []
    ended: tuple[list[Event], Event | ResultDropped | None]
    async with scripted_server(serving.engine, observers=[records.append]) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        await peer.send(peer.wire.negotiate(session_id, [CapabilityToken.PROGRESS_PARTIAL]))
        await peer.expect(CapabilitiesAgreed)
        with anyio.fail_after(SECONDS):
            async with full(serving):
                usage = {"include_usage": True}
                chat = body(max_tokens=4, stream=True, stream_options=usage)
                frame_id = await peer.submit(session_id, chat, diagnostics=True)
                name = f"{session_id}.{frame_id}"
                while S.QUEUED not in peer.stages(frame_id):
                    await peer.next_event()
                first, last = await waiting(serving, name), await waiting(serving, name)
                # All that it did was to wait, and nothing else was told of it.
                assert peer.stages(frame_id) == [S.INPUT_RECEIVED, S.QUEUED]
                await serving.engine.abort_operations(["endless-0"], by="id")
                ended = await peer.result(frame_id)
            while not records:
                await checkpoint()
    events, terminal = ended
    assert isinstance(terminal, Completed)
    assert peer.stages(frame_id) == list(STAGES)
    (record,) = records
    *others, observation = events
    assert isinstance(observation, Diagnostics)
    assert not any(isinstance(event, Diagnostics) for event in others)
    facts = observation.diagnostics
    assert facts == msgspec.json.decode(msgspec.json.encode(diagnostics(record)))
    entry = serving.engine.ledger.find(name)
    assert entry is not None
    times = entry.timings
    assert times.queued is not None
    assert times.scheduled is not None
    assert facts["queue_delay_ms"] == pytest.approx(times.scheduled - times.queued, abs=0.001)
    assert 0 < first < last < facts["queue_delay_ms"]
    for phase in ("preprocessing_latency_ms", "prefill_latency_ms", "decode_latency_ms"):
        assert facts[phase] >= 0, phase
    assert (facts["operation"], facts["backend_family"]) == (name, "vllm")
    assert (facts["completion_tokens"], facts["finish_reasons"]) == (4, ["length"])
    assert facts["prompt_tokens"] > 0
    assert facts["terminal_outcome"] == "completed"


async def waiting(serving: Serving, name: str) -> float:
    """How long a request that waits has waited by the scheduler's word, in milliseconds."""
    while True:
        for one in (await serving.engine.queue()).operations:
            if one.id == name and one.queue_delay_ms:
                assert (one.state, one.timings.scheduled) == ("waiting", None)
                return one.queue_delay_ms
        await checkpoint()


async def test_a_cancelled_chats_diagnostics_have_the_schedulers_receipt(serving: Serving) -> None:
    endless = body("Count.", max_tokens=1500, ignore_eos=True, stream=True)
    async with scripted_server(serving.engine) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        with anyio.fail_after(SECONDS):
            frame_id = await peer.submit(session_id, endless, diagnostics=True)
            await peer.next_event()
            await peer.send(peer.wire.cancel(session_id, frame_id))
            events, _ = await peer.result(frame_id)
    observation = events[-1]
    assert isinstance(observation, Diagnostics)
    facts = observation.diagnostics
    assert (facts["terminal_outcome"], facts["cancellation_kind"]) == ("cancelled", "cancel")
    assert (facts["backend_abort_accepted"], facts["backend_abort_authoritative"]) == (True, True)
    assert facts["backend_abort_state"] == "running"
    assert facts["backend_abort_latency_ms"] > 0
