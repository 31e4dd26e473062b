"""PROGRESS: the engine's own stages where it tells them, and nothing made up where it does not."""

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import msgspec
import pytest

from nnrp_sched.engine.records import ChatBody, ChatCall, EngineDescription
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.profile.scheduling import RequestState
from nnrp_sched.server.progress import Progress
from nnrp_sched.wire import CapabilitiesAgreed, CapabilityToken, MessageType, ProgressStage
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, body, script, scripted_server, scripted_session

pytestmark = pytest.mark.anyio
S = ProgressStage


def stages(*moves: RequestState | None) -> list[ProgressStage]:
    """What is told of a request that moved like this; None is an event that is sent."""
    told: list[ProgressStage] = []
    progress = Progress(told.append)
    progress.received()
    for state in moves:
        if state is None:
            progress.producing()
        else:
            progress.moved(state)
    return told


@pytest.mark.parametrize(
    ("moves", "told"),
    [
        ((), [S.INPUT_RECEIVED]),
        ((None, None), [S.INPUT_RECEIVED, S.PRODUCING_PARTIAL]),
        (
            ("waiting", "running", None),
            [S.INPUT_RECEIVED, S.QUEUED, S.ADMITTED, S.EXECUTING, S.PRODUCING_PARTIAL],
        ),
        (("waiting", "waiting"), [S.INPUT_RECEIVED, S.QUEUED]),
        (("blocked",), [S.INPUT_RECEIVED, S.WAITING_DEPENDENCY]),
        (("admitting", "finished", "unknown"), [S.INPUT_RECEIVED]),
        # News that come late tell nothing: output is there already.
        ((None, "waiting", "running"), [S.INPUT_RECEIVED, S.PRODUCING_PARTIAL]),
        (
            ("running", None, "preempted", "running", None),
            [
                *(S.INPUT_RECEIVED, S.ADMITTED, S.EXECUTING, S.PRODUCING_PARTIAL),
                *(S.QUEUED, S.EXECUTING, S.PRODUCING_PARTIAL),
            ],
        ),
    ],
)
def test_stages_follow_what_the_scheduler_did(
    moves: tuple[RequestState | None, ...], told: list[ProgressStage]
) -> None:
    assert stages(*moves) == told


class _Unwatched(ScriptedEngine):
    """Like an engine without patches: nobody tells where a call stands."""

    @property
    def description(self) -> EngineDescription:
        return msgspec.structs.replace(super().description, live_queue=False)

    def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        return super().stream(msgspec.structs.replace(call, moved=None))


async def told(peer: RawPeer, frame_id: int) -> list[tuple[int, int]]:
    """Sequence and stage of each PROGRESS of a frame, which has ended."""
    return [
        (metadata.progress_sequence, metadata.stage)
        for packet in peer.packets
        if packet.message_type is MessageType.PROGRESS and packet.frame_id == frame_id
        for metadata in [_any(packet.metadata)]
    ]


def _any(value: Any) -> Any:
    return value


@pytest.mark.parametrize("agreed", [True, False])
async def test_progress_comes_after_a_negotiation_only(agreed: bool) -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        if agreed:
            wish = [CapabilityToken.PROGRESS_PARTIAL]
            await peer.send(peer.wire.negotiate(session_id, wish))
            assert (await peer.expect(CapabilitiesAgreed)).tokens == set(wish)
        frame_id = await peer.submit(session_id, body(stream=True))
        await peer.result(frame_id)
        sent = await told(peer, frame_id)
    expected = [3, 1, 2, 5, 7]
    assert sent == (list(enumerate(expected, 1)) if agreed else [])


async def test_an_engine_that_tells_nothing_has_nothing_told_of_it() -> None:
    async with scripted_server(_Unwatched()) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        await peer.send(peer.wire.negotiate(session_id, [CapabilityToken.PROGRESS_PARTIAL]))
        frame_id = await peer.submit(session_id, body(stream=True))
        await peer.result(frame_id)
        assert [stage for _, stage in await told(peer, frame_id)] == [
            S.INPUT_RECEIVED,
            S.PRODUCING_PARTIAL,
        ]


async def test_a_client_sees_an_operation_wait_and_run() -> None:
    seen: list[ProgressStage | None] = []
    async with scripted_session(ScriptedEngine(slots=1)) as (_, session):
        with anyio.fail_after(SECONDS):
            assert await session.negotiate([CapabilityToken.PROGRESS_PARTIAL, "object.delta"]) == {
                CapabilityToken.PROGRESS_PARTIAL
            }
            first = session.chat(script(text="x", hold=True), stream=True)
            assert first.stage is None
            await anext(first)
            seen.append(first.stage)
            second = session.chat(body(), stream=True)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(second.result)
                while second.stage is not S.QUEUED:
                    await session.queue()
                await first.cancel()
            seen.append(second.stage)
    assert seen == [S.PRODUCING_PARTIAL, S.PRODUCING_PARTIAL]


async def test_nothing_is_told_of_an_operation_that_was_cancelled() -> None:
    async with scripted_server(ScriptedEngine(slots=1)) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        await peer.send(peer.wire.negotiate(session_id, [CapabilityToken.PROGRESS_PARTIAL]))
        running = await peer.submit(session_id, script(text="x", hold=True) | {"stream": True})
        waiting = await peer.submit(session_id, body(stream=True))
        with anyio.fail_after(SECONDS):
            while (2, S.QUEUED) not in await told(peer, waiting):
                await peer.next_event()
        await peer.send(
            peer.wire.cancel(session_id, waiting) + peer.wire.cancel(session_id, running)
        )
        await peer.until_terminal(waiting)
        await peer.until_terminal(running)
        assert [stage for _, stage in await told(peer, waiting)] == [S.INPUT_RECEIVED, S.QUEUED]
