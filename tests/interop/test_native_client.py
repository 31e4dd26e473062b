"""The SDK's client against our server: what others wrote can use it."""

import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import Struct

from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.server import Server, serve
from nnrp_sched.transport import parse_endpoint
from tests.interop.native_client import NativeConnection, native_connection
from tests.interop.native_sdk import KINDS
from tests.support.carriers import server_security
from tests.support.serving import body, script

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024


class Ours(Struct, frozen=True):
    """Our server, and the SDK's connection to it."""

    server: Server
    connection: NativeConnection
    records: list[OperationRecord]


@pytest.fixture(params=KINDS)
async def ours(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Ours]:
    """On each carrier."""
    endpoint = parse_endpoint(KINDS[request.param].address.format(folder=tmp_path, port=0))
    records: list[OperationRecord] = []
    async with serve(
        ScriptedEngine(), [endpoint], observers=[records.append], security=server_security()
    ) as server:
        address = str(server.endpoints[0])
        async with native_connection(request.param, address) as connection:
            yield Ours(server, connection, records)


def envelope(chat: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": "openai-compatible/1",
        "operation": "chat.completions.create",
        "body": chat,
    }


async def until_idle(server: Server) -> None:
    """Wait until the engine has nothing to do and the server holds no operation."""
    with anyio.fail_after(20):
        while len(server.admission) or (await server.engine.queue()).operations:
            await anyio.lowlevel.checkpoint()


async def test_a_streaming_chat_ends_with_its_document_and_the_session_closes(ours: Ours) -> None:
    session = await ours.connection.open()
    await session.submit(0x7001, 1, envelope(body("hello there", stream=True)))
    ended = await session.result(1)
    events = [json.loads(event) for event in ended.events]
    assert {event["type"] for event in events} == {"response.output_text.delta"}
    text = "".join(event["delta"] for event in events)
    assert text == "You said: hello there"
    assert ended.kind == "RESULT_PUSH"
    assert ended.document["type"] == "response.completed"
    assert ended.document["body"]["choices"][0]["message"]["content"] == text
    await session.close()


async def test_a_session_can_be_opened_again_after_the_close(ours: Ours) -> None:
    for _ in range(3):
        session = await ours.connection.open()
        await session.submit(1, 1, envelope(body("again")))
        assert (await session.result(1)).document["type"] == "response.completed"
        await session.close()


async def test_several_sessions_use_the_same_operation_ids_at_once(ours: Ours) -> None:
    sessions = [await ours.connection.open() for _ in range(4)]
    for number, session in enumerate(sessions):
        await session.submit(7, 1, envelope(body(f"number {number}", stream=True)))
    for number, session in enumerate(sessions):
        ended = await session.result(1)
        text = ended.document["body"]["choices"][0]["message"]["content"]
        assert text == f"You said: number {number}"
    for session in sessions:
        await session.close()


async def test_many_operations_run_at_once_in_one_session(ours: Ours) -> None:
    session = await ours.connection.open(max_in_flight=32)
    for number in range(1, 17):
        await session.submit(100 + number, number, envelope(body(f"say {number}")))
    ended: dict[int, str] = {}
    while len(ended) < 16:
        event = await session.next_terminal()
        ended[event[0]] = event[1]["body"]["choices"][0]["message"]["content"]
    assert ended == {number: f"You said: say {number}" for number in range(1, 17)}
    await session.close()


async def test_cancel_in_mid_stream_ends_with_our_response_cancelled(ours: Ours) -> None:
    session = await ours.connection.open()
    await session.submit(9, 1, envelope(script(text="on ", hold=True) | {"stream": True}))
    assert json.loads(await session.first_event(1))["delta"]
    await session.cancel(9)
    ended = await session.result(1)
    assert (ended.kind, ended.document["type"]) == ("RESULT_PUSH", "response.cancelled")
    await until_idle(ours.server)
    await session.submit(10, 2, envelope(body("still here")))
    assert (await session.result(2)).document["type"] == "response.completed"
    await session.close()


async def test_abort_in_mid_stream_ends_with_a_drop(ours: Ours) -> None:
    session = await ours.connection.open()
    await session.submit(9, 1, envelope(script(text="on ", hold=True) | {"stream": True}))
    await session.first_event(1)
    await session.abort(9)
    ended = await session.result(1)
    assert ended.kind == "RESULT_DROP_REASON"
    await until_idle(ours.server)
    await session.close()


async def test_a_refused_request_is_a_document_and_the_session_lives_on(ours: Ours) -> None:
    session = await ours.connection.open()
    await session.submit(1, 1, {"schema_version": "other/1"})
    refused = (await session.result(1)).document
    assert refused["error"]["code"] == "unsupported_schema_version"
    await session.submit(2, 2, envelope(body("fine")))
    assert (await session.result(2)).document["type"] == "response.completed"
    await session.close()


async def test_trace_contexts_of_session_and_operation_arrive(ours: Ours) -> None:
    session = await ours.connection.open()
    await session.trace(0xFEED, 1)
    await session.submit(1, 1, envelope(body("session's")), trace=0xFEED)
    await session.result(1)
    await session.submit(2, 2, envelope(script(text="a", hold=True) | {"stream": True}))
    await session.first_event(2)
    await session.trace(0xBEEF, 2, operation=2)
    await session.cancel(2)
    await session.result(2)
    await session.close()
    first, second = ours.records
    assert first.header_trace_id == 0xFEED
    assert first.trace is not None and second.trace is not None
    assert (first.trace.trace_id, first.trace.scope, first.trace.late) == (0xFEED, "session", False)
    assert (second.trace.trace_id, second.trace.scope) == (0xBEEF, "operation")
    assert second.trace.late, "the SDK can only send it after the submit, when we have dispatched"


async def test_16_mib_go_there_and_come_back(ours: Ours) -> None:
    session = await ours.connection.open()
    text = "x" * (16 * MIB)
    await session.submit(1, 1, envelope(body(text)))
    ended = await session.result(1)
    content = ended.document["body"]["choices"][0]["message"]["content"]
    assert content == f"You said: {text}"
    await session.close()


async def test_a_client_that_is_killed_in_mid_stream_frees_the_engine(tmp_path: Path) -> None:
    endpoint = parse_endpoint(f"unix://{tmp_path}/n.sock")
    async with serve(ScriptedEngine(), [endpoint]) as server:
        command = [sys.executable, "-m", "tests.interop.streaming_client", str(endpoint)]
        async with await anyio.open_process(command, cwd=ROOT) as process:
            assert process.stdout is not None
            with anyio.fail_after(30):
                assert await process.stdout.receive() == b"streaming\n"
            assert len((await server.engine.queue()).operations) == 1
            process.kill()
        await until_idle(server)


async def test_a_refusal_for_lack_of_room_and_the_hint_before_it_leave_the_session_usable(
    ours: Ours,
) -> None:
    session = await ours.connection.open()
    await session.submit(1, 1, envelope(script(fail_status=503)))
    refused = await session.result(1)
    assert refused.document["error"]["code"] == "backend_overload"
    await session.submit(2, 2, envelope(body("again")))
    assert (await session.result(2)).document["type"] == "response.completed"
    await session.close()
