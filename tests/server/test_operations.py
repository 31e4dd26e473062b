"""What happens to operations: their events, their order, their single terminal."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from nnrp_sched.client import Chat
from nnrp_sched.engine.opaque import OpaqueQueue
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.profile import (
    Cancelled,
    Completed,
    Error,
    OutputTextDelta,
    ToolCallCompleted,
    ToolCallError,
    Usage,
)
from nnrp_sched.server import ServerLimits
from nnrp_sched.wire import CancelReason, DropReason, ResultDropped
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, body, script, scripted_server, scripted_session

pytestmark = pytest.mark.anyio


async def test_a_streaming_chat_gives_its_deltas_in_order_then_usage_then_the_final_body() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            request = script(text=["one ", "two ", "three"])
            request["stream_options"] = {"include_usage": True}
            chat = session.chat(request, stream=True)
            events = [event async for event in chat]
    *deltas, usage, completed = events
    assert [event.delta for event in deltas if isinstance(event, OutputTextDelta)] == [
        "one ",
        "two ",
        "three",
    ]
    assert isinstance(usage, Usage)
    assert isinstance(completed, Completed)
    assert chat.outcome is not None
    assert chat.outcome.status == "completed"
    assert chat.outcome.text == "one two three"
    assert completed.body["choices"][0]["message"]["content"] == "one two three"


async def test_a_chat_that_does_not_stream_gives_exactly_one_completed_event() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            events = [event async for event in session.chat(script(text="all of it"))]
    assert [type(event) for event in events] == [Completed]


async def test_a_client_s_request_id_names_the_answer() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            outcome = await session.chat(body(), request_id="turn-7").result()
            derived = await session.chat(body()).result()
    assert outcome.body is not None
    assert outcome.body["id"] == "chatcmpl-turn-7"
    assert derived.body is not None
    assert derived.body["id"].startswith("chatcmpl-nnrp-")


async def test_two_operations_may_share_a_request_id_and_are_cancelled_apart() -> None:
    async with scripted_session() as (served, session):
        with anyio.fail_after(SECONDS):
            first = session.chat(script(text="a", hold=True), stream=True, request_id="same")
            second = session.chat(script(text="b", hold=True), stream=True, request_id="same")
            assert isinstance(await anext(first), OutputTextDelta)
            assert isinstance(await anext(second), OutputTextDelta)
            assert (await first.cancel()).status == "cancelled"
            assert len(served.server.admission) == 1
            assert (await second.cancel()).status == "cancelled"


async def test_256_operations_at_once_on_one_session_all_complete_each_in_order() -> None:
    finished: list[int] = []

    async def one(chat: Chat, number: int) -> None:
        deltas = [event.delta async for event in chat if isinstance(event, OutputTextDelta)]
        assert deltas == [f"{number}:{piece} " for piece in range(20)]
        assert chat.outcome is not None
        assert chat.outcome.status == "completed"
        finished.append(number)

    async with scripted_session(max_in_flight=256) as (_, session):
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for number in range(256):
                    pieces = [f"{number}:{piece} " for piece in range(20)]
                    chat = session.chat(script(text=pieces), stream=True)
                    tasks.start_soon(one, chat, number)
    assert sorted(finished) == list(range(256))


@pytest.mark.timeout(180)
async def test_20_000_operations_in_a_row_leave_no_objects_behind() -> None:
    async with scripted_session() as (served, session):

        async def run(count: int) -> int:
            for _ in range(count):
                outcome = await session.chat(script(text=["a", "b"]), stream=True).result()
                assert outcome.text == "ab"
            gc.collect()
            return len(gc.get_objects())

        with anyio.fail_after(170):
            await run(2_000)  # More than the tombstones a session keeps.
            before = await run(1_000)
            after = await run(17_000)
        assert session.in_flight == 0
        assert len(served.server.admission) == 0
    # A leak of one object an operation would show as 17,000.
    assert after - before < 500


async def test_cancel_ends_the_operation_once_and_nothing_follows_it() -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit(
            session_id, script(text="x", hold=True, repeat=5) | {"stream": True}
        )
        other = await peer.submit(session_id, body("other"))
        await peer.send(peer.wire.cancel(session_id, frame_id, reason=CancelReason.USER_CANCELLED))
        events, terminal = await peer.result(frame_id)
        assert terminal == Cancelled(reason="peer_cancelled")
        # The connection goes on, and a while later there is still only that one terminal.
        later = await peer.submit(session_id, body("later"))
        _, completed = await peer.result(later)
        assert isinstance(completed, Completed)
        assert len(peer.terminals(frame_id)) == 1
        assert len(peer.terminals(other)) == 1
        frames = [packet.frame_id for packet in peer.packets]
        assert frame_id not in frames[frames.index(frame_id) + len(events) + 1 :] or (
            frames.count(frame_id) == len(events) + 1
        )


async def test_frame_cancel_means_the_same_as_cancel() -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, script(hold=True) | {"stream": True})
        await peer.send(peer.wire.frame_cancel(session_id, frame_id))
        _, terminal = await peer.result(frame_id)
        assert terminal == Cancelled(reason="peer_cancelled")


async def test_abort_ends_the_operation_with_a_drop_reason() -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, script(hold=True) | {"stream": True})
        await peer.send(peer.wire.abort(session_id, frame_id))
        _, terminal = await peer.result(frame_id)
        assert isinstance(terminal, ResultDropped)
        assert terminal.reason is DropReason.PEER_CANCELLED
        assert terminal.diagnostic == "peer_abort"


async def test_a_non_streaming_operation_is_cancelled_too() -> None:
    async with scripted_server() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, script(text="x", hold=True))
        await peer.send(peer.wire.cancel(session_id, frame_id))
        _, terminal = await peer.result(frame_id)
        assert terminal == Cancelled(reason="peer_cancelled")
        assert len(served.server.admission) == 0


async def test_timeout_ms_ends_the_operation_with_request_timeout() -> None:
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            chat = session.chat(script(text="x", hold=True), stream=True, timeout_ms=50)
            outcome = await chat.result()
    assert outcome.status == "error"
    assert outcome.error is not None
    assert outcome.error.code == "request_timeout"
    assert outcome.text == "x"


async def test_a_failure_in_the_middle_closes_the_open_tool_call_before_the_error() -> None:
    calls = [{"name": "grep", "arguments": '{"pattern": "a long enough one"}'}]
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            chat = session.chat(script(tool_calls=calls, fail_after=3), stream=True)
            events = [event async for event in chat]
    assert isinstance(events[-2], ToolCallError)
    assert events[-2].error.code == "tool_call_stream_interrupted"
    assert isinstance(events[-1], Error)
    assert events[-1].error.code == "backend_error"


async def test_tool_calls_stream_to_a_completed_event_with_all_arguments() -> None:
    calls = [{"name": "grep", "arguments": '{"pattern": "x"}'}, {"name": "read", "arguments": "{}"}]
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            chat = session.chat(script(tool_calls=calls), stream=True)
            events = [event async for event in chat]
    completed = [event for event in events if isinstance(event, ToolCallCompleted)]
    assert [(event.name, event.arguments) for event in completed] == [
        ("grep", '{"pattern": "x"}'),
        ("read", "{}"),
    ]


class _BrokenEngine(OpaqueQueue):
    """An engine whose code has a fault."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.description = inner.description

    async def complete(self, call: Any) -> Any:
        raise ZeroDivisionError("a fault in the engine")

    def stream(self, call: Any) -> Any:
        return self._inner.stream(call)

    async def abort(self, request_id: str) -> Any:
        return await self._inner.abort(request_id)


async def test_a_fault_in_the_engine_s_code_ends_one_operation_and_harms_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripted_session(_BrokenEngine(ScriptedEngine())) as (_, session):
        with anyio.fail_after(SECONDS):
            broken = await session.chat(body()).result()
            healthy = await session.chat(body(), stream=True).result()
    assert broken.error is not None
    assert broken.error.code == "adapter_runtime_error"
    assert "ZeroDivisionError" not in broken.error.message
    assert healthy.status == "completed"
    assert "ZeroDivisionError" in caplog.text


class _StrangeEngine(OpaqueQueue):
    """An engine that answers a call without streaming as it is told."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._inner = ScriptedEngine()
        self._answer = answer
        self.description = self._inner.description

    async def complete(self, call: Any) -> Any:
        return self._answer()

    async def stream(self, call: Any) -> AsyncGenerator[Any, None]:
        async with aclosing(self._inner.stream(call)) as chunks:
            async for chunk in chunks:
                yield chunk
                if call.body.get("user") == "strange":
                    yield self._answer()

    async def abort(self, request_id: str) -> Any:
        return self._answer()


def cancelled_by_itself() -> Any:
    """What an engine does whose own tasks were cancelled."""
    raise asyncio.CancelledError


STRANGE: dict[str, Callable[[], Any]] = {
    "its own cancellation": cancelled_by_itself,
    "no JSON": lambda: {"choices": [], "usage": {"total": object()}},
    "more than a packet holds": lambda: {"choices": [], "usage": {"x": "x" * (64 << 20)}},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", STRANGE)
async def test_an_answer_that_cannot_be_sent_ends_its_operation_in_an_error_and_no_other(
    kind: str, stream: bool
) -> None:
    async with scripted_session(_StrangeEngine(STRANGE[kind])) as (_, session):
        with anyio.fail_after(SECONDS):
            strange = await session.chat(body(user="strange"), stream=stream).result()
            healthy = await session.chat(body(), stream=True).result()
    assert strange.error is not None
    assert strange.error.code == "adapter_runtime_error"
    assert healthy.status == "completed"


async def test_an_abort_that_the_engine_cancels_itself_still_ends_the_operation() -> None:
    async with scripted_session(_StrangeEngine(cancelled_by_itself)) as (_, session):
        with anyio.fail_after(SECONDS):
            held = session.chat(script(text="x", hold=True), stream=True)
            await anext(held)
            assert (await held.cancel()).status == "cancelled"
            healthy = await session.chat(body(), stream=True).result()
    assert healthy.status == "completed"


async def test_more_operations_than_the_server_runs_are_refused_and_the_others_finish() -> None:
    limits = ServerLimits(max_operations=2)
    async with scripted_session(limits=limits) as (_, session):
        with anyio.fail_after(SECONDS):
            held = [session.chat(script(text="x", hold=True), stream=True) for _ in range(2)]
            for chat in held:
                await anext(chat)
            refused = await session.chat(body()).result()
            for chat in held:
                assert (await chat.cancel()).status == "cancelled"
            admitted = await session.chat(body()).result()
    assert refused.error is not None
    assert refused.error.code == "adapter_operation_limit"
    assert admitted.status == "completed"
