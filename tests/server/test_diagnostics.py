"""`nnrp.diagnostics`: one event before the terminal, made from the record that exporters get."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from nnrp_sched.observe.diagnostics import diagnostics
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.profile import Completed, Event
from nnrp_sched.profile.events import Cancelled, Diagnostics, Error
from nnrp_sched.wire import CancelReason, MessageType, ResultDropped
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, body, script, scripted_server

pytestmark = pytest.mark.anyio


class Observed:
    """A peer on a server whose records are kept."""

    def __init__(self, peer: RawPeer, session_id: int, records: list[OperationRecord]) -> None:
        self.peer = peer
        self.session_id = session_id
        self.records = records

    async def submit(self, chat: dict[str, Any], **members: Any) -> int:
        """Submit a chat that wants diagnostics."""
        return await self.peer.submit(self.session_id, chat, diagnostics=True, **members)

    async def ended(self, frame_id: int) -> tuple[dict[str, Any], Event | ResultDropped | None]:
        """The diagnostics that came right before the terminal, and that; the record agrees."""
        events, terminal = await self.peer.result(frame_id)
        *others, last = events
        assert isinstance(last, Diagnostics)
        assert not any(isinstance(event, Diagnostics) for event in others)
        with anyio.fail_after(SECONDS):
            while not self.records:
                await anyio.lowlevel.checkpoint()
        (record,) = self.records
        # Through JSON: the wire has no tuples.
        assert last.diagnostics == msgspec.json.decode(msgspec.json.encode(diagnostics(record)))
        return last.diagnostics, terminal


@asynccontextmanager
async def observed() -> AsyncGenerator[Observed]:
    records: list[OperationRecord] = []
    async with scripted_server(observers=[records.append]) as served:
        peer = RawPeer(served.dial())
        yield Observed(peer, await peer.open(), records)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_completed_chat_tells_what_it_took(stream: bool) -> None:
    async with observed() as at:
        # Without this a stream does not tell how long its prompt was, and nobody guesses.
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        chat = body("hello", stream=stream, **usage)
        facts, terminal = await at.ended(await at.submit(chat))
        assert isinstance(terminal, Completed)
        assert facts["terminal_outcome"] == "completed"
        assert facts["model_id"] == "example-model"
        assert facts["profile_operation"] == "chat.completions.create"
        assert facts["selected_transport"] == "memory"
        assert facts["connection_id"] == 1
        assert facts["session_id"] == at.session_id
        assert facts["total_tokens"] == facts["prompt_tokens"] + facts["completion_tokens"]
        assert (facts["output_event_count"] > 0) is stream
        assert (facts["output_bytes"] > 0) is stream
        assert facts["cancellation_kind"] is None


async def test_a_failed_chat_tells_whose_error_it_was() -> None:
    async with observed() as at:
        facts, terminal = await at.ended(await at.submit(body() | {"model": "backend-error"}))
        assert isinstance(terminal, Error)
        assert facts["terminal_outcome"] == "failed"
        assert facts["error_code"] == terminal.error.code
        assert facts["error_family"]


async def test_a_model_that_is_not_served_is_not_named() -> None:
    async with observed() as at:
        facts, terminal = await at.ended(await at.submit(body() | {"model": "x" * 1000}))
        assert isinstance(terminal, Error)
        assert facts["model_id"] is None


async def test_a_cancelled_chat_tells_who_wanted_it_why_and_what_the_engine_said() -> None:
    async with observed() as at:
        frame_id = await at.submit(script(text="x", hold=True) | {"stream": True})
        await at.peer.next_event()
        await at.peer.send(
            at.peer.wire.cancel(at.session_id, frame_id, reason=CancelReason.USER_CANCELLED)
        )
        facts, terminal = await at.ended(frame_id)
        assert isinstance(terminal, Cancelled)
        assert facts["terminal_outcome"] == "cancelled"
        assert facts["cancellation_kind"] == "cancel"
        assert facts["cancellation_source"] == "client"
        assert facts["cancellation_reason_code"] == CancelReason.USER_CANCELLED
        assert facts["backend_abort_accepted"] is True


async def test_a_dropped_chat_tells_the_reason() -> None:
    async with observed() as at:
        frame_id = await at.submit(script(text="x", hold=True) | {"stream": True})
        await at.peer.next_event()
        await at.peer.send(at.peer.wire.expire_at(at.session_id, frame_id, 1))
        facts, terminal = await at.ended(frame_id)
        assert isinstance(terminal, ResultDropped)
        assert facts["terminal_outcome"] == "dropped"
        assert facts["drop_reason"] == "deadline_expired"
        assert facts["cancellation_kind"] == "deadline_expired"


async def test_an_abort_is_followed_by_no_event_at_all() -> None:
    async with observed() as at:
        frame_id = await at.submit(script(text="x", hold=True) | {"stream": True})
        await at.peer.next_event()
        await at.peer.send(at.peer.wire.abort(at.session_id, frame_id))
        terminal = await at.peer.until_terminal(frame_id)
        assert terminal.message_type is MessageType.RESULT_DROP_REASON
        partials = [p for p in at.peer.packets if p.message_type is MessageType.PARTIAL_RESULT]
        assert all(b"diagnostics" not in packet.body for packet in partials)


@pytest.mark.parametrize("wish", [False, None])
async def test_who_does_not_ask_is_told_nothing(wish: bool | None) -> None:
    async with observed() as at:
        frame_id = await at.peer.submit(at.session_id, body(stream=True), diagnostics=wish)
        events, _ = await at.peer.result(frame_id)
        assert not any(isinstance(event, Diagnostics) for event in events)


async def test_a_failing_exporter_harms_neither_the_chat_nor_its_diagnostics() -> None:
    def broken(_record: OperationRecord) -> None:
        raise OSError("the disk is full")

    async with scripted_server(observers=[broken]) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        for _ in range(3):
            frame_id = await peer.submit(session_id, body(stream=True), diagnostics=True)
            events, terminal = await peer.result(frame_id)
            assert isinstance(events[-1], Diagnostics)
            assert isinstance(terminal, Completed)
