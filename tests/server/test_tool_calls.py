"""Tools that a server hosts: calls, their ends, and what bounds them."""

from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnrp_sched.client import Chat, Outcome, Session
from nnrp_sched.engine.absent import AbsentEngine
from nnrp_sched.engine.port import Engine
from nnrp_sched.profile import Cancelled, Completed, Error, Event
from nnrp_sched.profile.events import ToolOutputDelta, ToolStopped
from nnrp_sched.profile.tools import (
    TOOLS_CALL,
    TOOLS_LIST,
    TOOLS_SCHEMA,
    ToolAnswer,
    build_tools,
)
from nnrp_sched.server import ServerLimits
from nnrp_sched.wire import DropReason, InFlightPolicy, ResultDropped
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, body, scripted_server, scripted_session
from tests.support.tool_hosts import PlayedHost, play

pytestmark = pytest.mark.anyio


def call(session: Session, **part: Any) -> Chat:
    return Chat(session, build_tools(TOOLS_CALL, play(**part)))


async def read(chat: Chat) -> tuple[list[Event], Outcome]:
    """All events, and the outcome."""
    with anyio.fail_after(SECONDS):
        events = [event async for event in chat]
    assert chat.outcome is not None
    return events, chat.outcome


async def test_the_list_says_what_the_host_has() -> None:
    async with scripted_session(tool_host=PlayedHost()) as (_, session):
        _, outcome = await read(Chat(session, build_tools(TOOLS_LIST, {})))
    assert outcome.body == {
        "tools": [
            {"name": "play", "description": "Do as told.", "parameters": {"type": "object"}},
            {"name": "other", "description": "", "parameters": {"type": "object"}},
        ]
    }


async def test_a_call_streams_its_output_and_ends_with_its_answer() -> None:
    host = PlayedHost()
    answer = ToolAnswer("failed", "it said no", output_bytes=3, exit_code=2, stderr="no")
    asked = play(say=["a", "é"], answer=msgspec.to_builtins(answer))
    asked |= {"call_id": "c1", "max_output_bytes": 7, "max_seconds": 2.5}
    async with scripted_session(tool_host=host) as (served, session):
        events, outcome = await read(Chat(session, build_tools(TOOLS_CALL, asked)))
        assert len(served.server.tools) == 0
    assert events[:-1] == [ToolOutputDelta("a"), ToolOutputDelta("é")]
    assert outcome.status == "completed"
    assert msgspec.convert(outcome.body, ToolAnswer) == answer
    (body,) = host.asked
    assert (body.call_id, body.max_output_bytes, body.max_seconds) == ("c1", 7, 2.5)
    assert host.stops == []


async def test_tools_and_chats_share_a_session() -> None:
    async with scripted_session(tool_host=PlayedHost()) as (_, session):
        with anyio.fail_after(SECONDS):
            held = call(session, say=["x"], hold=True)
            await anext(held)
            assert (await session.chat(body()).result()).text == "You said: hello"
            assert (await held.cancel()).status == "cancelled"


async def test_a_cancel_stops_the_tool_and_its_receipt_comes_before_the_end() -> None:
    host = PlayedHost()
    async with scripted_session(tool_host=host) as (_, session):
        with anyio.fail_after(SECONDS):
            chat = call(session, say=["x"], hold=True)
            await anext(chat)
            chat.ask_cancel("enough")
            events, outcome = await read(chat)
    stopped, end = events
    assert isinstance(stopped, ToolStopped)
    receipt = stopped.receipt
    assert (receipt.request_id, receipt.state) == (chat.name, "running")
    assert (receipt.accepted, receipt.authoritative) == (True, True)
    assert end == Cancelled("peer_cancelled")
    assert outcome.status == "cancelled"
    assert (host.running, host.stops) == (0, ["cancel"])


@pytest.mark.parametrize("part", [{"gone": False}, {"stop_raises": True}])
async def test_a_host_that_cannot_prove_it_gives_a_receipt_that_says_so(
    part: dict[str, Any],
) -> None:
    async with scripted_session(tool_host=PlayedHost()) as (_, session):
        with anyio.fail_after(SECONDS):
            chat = call(session, say=["x"], hold=True, **part)
            await anext(chat)
            chat.ask_cancel()
            (stopped, _), outcome = await read(chat)
    assert isinstance(stopped, ToolStopped)
    assert not stopped.receipt.authoritative
    assert outcome.status == "cancelled"


async def test_a_tool_that_does_not_heed_its_end_keeps_its_place_but_not_its_caller() -> None:
    host = PlayedHost()
    limits = ServerLimits(abort_seconds=0.05, max_tool_calls=1)
    async with scripted_session(limits=limits, tool_host=host) as (served, session):
        with anyio.fail_after(SECONDS):
            chat = call(session, say=["x"], deaf=True)
            await anext(chat)
            chat.ask_cancel()
            (stopped, _), outcome = await read(chat)
            assert isinstance(stopped, ToolStopped)
            receipt = stopped.receipt
            assert (receipt.state, receipt.accepted, receipt.authoritative) == (
                "running",
                False,
                False,
            )
            assert receipt.latency_ms >= 50
            assert outcome.status == "cancelled"
            assert len(served.server.tools) == 1
            _, refused = await read(call(session))
            host.wake.set()
            await host.until(lambda: len(served.server.tools) == 0)
            _, served_again = await read(call(session))
    assert refused.error is not None
    assert refused.error.code == "adapter_operation_limit"
    assert served_again.status == "completed"


async def test_an_abort_ends_without_a_word_of_the_tool() -> None:
    host = PlayedHost()
    async with scripted_server(tool_host=host) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit_document(session_id, build_tools(TOOLS_CALL, play(hold=True)))
        await host.until(lambda: host.running == 1)
        await peer.send(peer.wire.abort(session_id, frame_id))
        events, end = await peer.result(frame_id)
    assert events == []
    assert isinstance(end, ResultDropped)
    assert end.reason is DropReason.PEER_CANCELLED
    assert (host.running, host.stops) == (0, ["abort"])


async def test_a_deadline_stops_a_tool_too() -> None:
    host = PlayedHost()
    async with scripted_session(tool_host=host) as (_, session):
        with anyio.fail_after(SECONDS):
            chat = call(session, say=["x"], hold=True)
            await anext(chat)
            chat.set_deadline(1.0)
            outcome = await chat.result()
    assert (outcome.status, outcome.reason) == ("dropped", "deadline_expired")
    assert (host.running, host.stops) == (0, ["deadline"])


@pytest.mark.parametrize("how", ["lost", "session"])
async def test_a_caller_that_is_gone_stops_its_calls(how: str) -> None:
    host = PlayedHost()
    async with scripted_server(tool_host=host) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        for _ in range(3):
            await peer.submit_document(session_id, build_tools(TOOLS_CALL, play(hold=True)))
        await host.until(lambda: host.running == 3)
        if how == "lost":
            await peer.carrier.aclose()
        else:
            await peer.send(peer.wire.close_session(session_id, policy=InFlightPolicy.ABORT))
        await host.until(lambda: host.running == 0 and len(served.server.tools) == 0)
    assert host.stops == [how] * 3


async def test_a_draining_server_lets_calls_finish_and_stops_those_that_do_not() -> None:
    host = PlayedHost()
    async with scripted_server(tool_host=host) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        held = await peer.submit_document(session_id, build_tools(TOOLS_CALL, play(hold=True)))
        await host.until(lambda: host.running == 1)
        with anyio.fail_after(SECONDS):
            await served.server.drain(0.02)
        events, end = await peer.result(held)
    (stopped,) = events
    assert isinstance(stopped, ToolStopped)
    assert isinstance(end, ResultDropped)
    assert end.diagnostic == "server_shutdown"
    assert host.running == 0


async def test_a_fault_of_the_host_ends_its_call_alone() -> None:
    async with scripted_session(tool_host=PlayedHost()) as (_, session):
        _, failed = await read(call(session, raises="a fault"))
        _, refused = await read(Chat(session, build_tools(TOOLS_CALL, {"name": "play"})))
        _, healthy = await read(call(session))
        broken = play() | {"arguments": "no JSON"}
        _, odd = await read(Chat(session, build_tools(TOOLS_CALL, broken)))
        _, still = await read(call(session))
    assert failed.error is not None
    assert failed.error.code == "adapter_runtime_error"
    assert "a fault" not in failed.error.message
    assert odd.error is not None
    assert odd.error.code == "adapter_runtime_error"
    assert [each.status for each in (refused, healthy, still)] == ["completed"] * 3


async def test_a_tool_that_is_not_there_is_refused_with_those_that_are() -> None:
    async with scripted_session(tool_host=PlayedHost()) as (served, session):
        _, outcome = await read(Chat(session, build_tools(TOOLS_CALL, {"name": "grep"})))
        assert len(served.server.tools) == 0
    assert outcome.error is not None
    assert outcome.error.code == "invalid_body"
    assert "play, other" in outcome.error.message


@pytest.mark.parametrize("operation", [TOOLS_LIST, TOOLS_CALL])
async def test_a_server_without_tools_refuses_and_says_what_to_do(operation: str) -> None:
    async with scripted_session() as (_, session):
        _, outcome = await read(Chat(session, build_tools(operation, play())))
        document = await session.capabilities()
    assert outcome.error is not None
    assert outcome.error.code == "unsupported_schema_version"
    assert "tool-host" in outcome.error.message
    assert TOOLS_SCHEMA not in [each["name"] for each in document["extensions"]]


@pytest.mark.parametrize("engine", [None, AbsentEngine()])
async def test_a_server_with_tools_declares_them(engine: Engine | None) -> None:
    async with scripted_session(engine, tool_host=PlayedHost()) as (_, session):
        document = await session.capabilities()
        snapshot = await session.queue()
        (receipt,) = await session.abort_operations(["1.1"])
        chat = await session.chat(body()).result()
    extensions = {each["name"]: each for each in document["extensions"]}
    assert extensions[TOOLS_SCHEMA]["critical"] is False
    assert snapshot.operations == ()
    assert (receipt.state, receipt.accepted) == ("unknown", False)
    if engine is None:
        assert document["compatibility_levels"] == [1]
        assert chat.status == "completed"
    else:
        # Without an engine nothing of the profile works, so nothing of it is declared.
        assert (document["compatibility_levels"], document["operations"]) == ([], [])
        assert document["models"] == []
        assert chat.error is not None
        assert chat.error.code == "unsupported_model"


async def test_a_reader_that_is_too_slow_loses_its_call_and_no_other() -> None:
    host = PlayedHost()
    limits = ServerLimits(
        send_queue_bytes=4096, operation_queue_bytes=4096, slow_reader_seconds=0.05
    )
    async with scripted_server(limits=limits, tool_host=host) as served:
        slow = RawPeer(served.dial())
        frame_id = await slow.submit_document(
            await slow.open(), build_tools(TOOLS_CALL, play(say=["x" * 1000], times=1_000_000))
        )
        async with served.connect() as connection, connection.session() as session:
            await host.until(lambda: host.begun == 1 and host.running == 0)
            events, _ = await read(call(session, say=["y"] * 10))
            assert len(events) == 11
        _, end = await slow.result(frame_id)
    assert isinstance(end, ResultDropped)
    assert end.reason is DropReason.BACKPRESSURE
    assert host.stops == ["slow_reader"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(
    st.sampled_from([TOOLS_CALL, TOOLS_LIST, "tools.x"]),
    st.dictionaries(
        st.sampled_from(["name", "arguments", "call_id", "max_seconds", "x"]),
        JSON | st.sampled_from(["play", "{}", '{"say":["a"]}']),
    ),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_every_request_gets_exactly_one_terminal(
    operation: str, asked: dict[str, Any]
) -> None:
    async with scripted_server(tool_host=PlayedHost()) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit_document(session_id, build_tools(operation, asked))
        _, end = await peer.result(frame_id)
        later = await peer.submit_document(session_id, build_tools(TOOLS_LIST, {}))
        await peer.result(later)
        assert len(peer.terminals(frame_id)) == 1
        assert len(served.server.tools) == 0
    assert isinstance(end, Completed | Error)
