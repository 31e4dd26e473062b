"""Our client against a server made with the SDK."""

import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched.client import Connection, connect
from nnrp_sched.profile import Completed, OutputTextDelta
from tests.interop.native_sdk import KINDS
from tests.interop.native_server import NativeChatServer, native_server
from tests.support.carriers import client_security
from tests.support.serving import body

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

MIB = 1024 * 1024
SECONDS = 30


def free_port() -> int:
    """A port that was free a moment ago; the SDK cannot choose one itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(params=KINDS)
async def theirs(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[tuple[NativeChatServer, Connection]]:
    """The SDK's server and our connection to it, on each carrier."""
    address = KINDS[request.param].address.format(folder=tmp_path, port=free_port())
    async with (
        native_server(request.param, address) as server,
        connect(address, security=client_security()) as connection,
    ):
        yield server, connection


Theirs = tuple[NativeChatServer, Connection]


async def test_a_streaming_chat_brings_its_deltas_and_the_document(theirs: Theirs) -> None:
    _, connection = theirs
    async with connection.session() as session:
        chat = session.chat(body("hello there"), stream=True)
        events = [event async for event in chat]
        assert [type(event) for event in events] == [OutputTextDelta, OutputTextDelta, Completed]
        assert (await chat.result()).text == "hello there"


async def test_sessions_are_closed_and_opened_again(theirs: Theirs) -> None:
    server, connection = theirs
    for number in range(3):
        async with connection.session() as session:
            assert (await session.chat(body(f"turn {number}")).result()).text == f"turn {number}"
    assert server.sessions == 3
    assert len(server.names("SESSION_CLOSE")) == 3
    assert server.errors == []


async def test_several_sessions_run_at_once(theirs: Theirs) -> None:
    server, connection = theirs
    async with (
        connection.session() as first,
        connection.session() as second,
        connection.session() as third,
    ):
        chats = [
            session.chat(body(f"{name} {number}"), stream=True)
            for number in range(4)
            for name, session in (("a", first), ("b", second), ("c", third))
        ]
        outcomes: dict[int, str] = {}

        async def read(number: int) -> None:
            outcomes[number] = (await chats[number].result()).text

        async with anyio.create_task_group() as tasks:
            for number in range(len(chats)):
                tasks.start_soon(read, number)
    wanted = [f"{name} {number}" for number in range(4) for name in "abc"]
    assert [outcomes[number] for number in range(len(chats))] == wanted
    assert server.sessions == 3


async def test_a_cancel_is_answered_by_a_drop_which_is_cancelled_to_us(theirs: Theirs) -> None:
    server, connection = theirs
    async with connection.session() as session:
        chat = session.chat(body("hold"), stream=True)
        assert isinstance(await anext(chat), OutputTextDelta)
        outcome = await chat.cancel("enough")
        assert (outcome.status, outcome.text) == ("cancelled", "hold")
        assert (await session.chat(body("still here")).result()).text == "still here"
    assert len(server.names("CANCEL")) == 1


async def test_a_drop_for_another_reason_is_dropped_to_us(theirs: Theirs) -> None:
    _, connection = theirs
    async with connection.session() as session:
        outcome = await session.chat(body("drop")).result()
    assert (outcome.status, outcome.reason) == ("dropped", "backpressure")


async def test_a_refusal_is_an_error_outcome(theirs: Theirs) -> None:
    _, connection = theirs
    async with connection.session() as session:
        outcome = await session.chat(body("refuse")).result()
    assert outcome.status == "error"
    assert outcome.error is not None
    assert outcome.error.code == "backend_error"


async def test_our_trace_context_arrives_with_its_operation(theirs: Theirs) -> None:
    server, connection = theirs
    traceparent = f"00-{0x1234_0000_FEED:032x}-{0xBEEF:016x}-01"
    async with connection.session() as session:
        # The SDK's server takes a context only while the operation runs.
        chat = session.chat(body("hold"), stream=True, traceparent=traceparent)
        await anext(chat)
        while not server.names("TRACE_CONTEXT"):
            await anyio.lowlevel.checkpoint()
        await chat.cancel()
    ((_, frame, metadata),) = server.names("TRACE_CONTEXT")
    context: Any = getattr(metadata, "value", metadata)
    assert frame == 1
    assert (context.trace_id, context.span_id, context.flags) == (0x1234_0000_FEED, 0xBEEF, 1)


async def test_16_mib_go_there_and_come_back(theirs: Theirs) -> None:
    _, connection = theirs
    text = "x" * (16 * MIB)
    async with connection.session() as session:
        with anyio.fail_after(60):
            outcome = await session.chat(body(text), stream=True).result()
    assert outcome.text == text
