"""Control messages of the SDK's client that our server acts on, and ours that the SDK reads."""

import asyncio
import struct
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.server import Server, serve
from nnrp_sched.transport import parse_endpoint
from tests.interop.native_client import NativeSession, native_connection
from tests.interop.native_sdk import SDK
from tests.support.serving import body, script

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

HELD = script(text="on ", hold=True) | {"stream": True}
PAST_MS = 1_000
Ours = tuple[Server, NativeSession, list[OperationRecord]]


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncGenerator[Ours]:
    """Our server with one place for a running chat, and a session of the SDK's."""
    endpoint = parse_endpoint(f"unix://{tmp_path}/n.sock")
    records: list[OperationRecord] = []
    async with (
        serve(ScriptedEngine(slots=1), [endpoint], observers=[records.append]) as server,
        native_connection("ipc", str(server.endpoints[0])) as connection,
    ):
        session = await connection.open()
        yield server, session, records
        await session.close()


def envelope(chat: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": "openai-compatible/1",
        "operation": "chat.completions.create",
        "body": chat,
    }


def scheduling(operation: int, **members: Any) -> Any:
    values = {
        "operation_id": operation,
        "control_sequence": 1,
        "priority_class": 0,
        "priority_delta": 0,
        "deadline_unix_ms": 0,
        "flags": 0,
    }
    return SDK.SchedulingMetadata(**values | members)


async def test_a_deadline_that_is_over_drops_the_operation(ours: Ours) -> None:
    _, session, _ = ours
    await session.submit(5, 1, envelope(HELD))
    await session.first_event(1)
    deadline = scheduling(5, deadline_unix_ms=PAST_MS)
    await asyncio.to_thread(session.native.update_deadline, deadline)
    ended = await session.result(1)
    assert ended.kind == "RESULT_DROP_REASON"
    assert reason(ended.metadata) == SDK.ResultDropReasonCode.DEADLINE_EXPIRED


async def test_an_expiry_in_the_future_ends_the_operation_then(ours: Ours) -> None:
    _, session, _ = ours
    await session.submit(5, 1, envelope(HELD))
    await session.first_event(1)
    expiry = scheduling(5, deadline_unix_ms=int(time.time() * 1000) + 150, flags=3)
    await asyncio.to_thread(session.native.expire_at, expiry)
    ended = await session.result(1)
    assert reason(ended.metadata) == SDK.ResultDropReasonCode.DEADLINE_EXPIRED


async def test_an_operation_gives_way_to_a_newer_one(ours: Ours) -> None:
    _, session, records = ours
    await session.submit(5, 1, envelope(HELD))
    await session.first_event(1)
    await session.submit(6, 2, envelope(body("newer")))
    superseded = SDK.SupersedeMetadata(5, 6, 1, 2, 1, 0)
    await asyncio.to_thread(session.native.supersede, superseded)
    # The SDK has forgotten the older one by then, and fails the poll that brings its drop.
    assert (await session.result(2)).document["type"] == "response.completed"
    assert session.lost == 1
    (dropped,) = [record for record in records if record.frame_id == 1]
    assert dropped.outcome == "dropped"


async def test_a_spent_token_budget_ends_the_operation_with_what_there_is(ours: Ours) -> None:
    _, session, _ = ours
    await session.submit(5, 1, envelope(HELD))
    await session.first_event(1)
    budget = SDK.BudgetMetadata(5, 0, 0, 0, 1, 1)
    await asyncio.to_thread(session.native.update_budget, budget)
    ended = await session.result(1)
    assert ended.kind == "RESULT_PUSH"
    assert ended.document["type"] == "response.completed"


async def test_a_priority_moves_a_waiting_operation_forward(ours: Ours) -> None:
    server, session, _ = ours
    await session.submit(5, 1, envelope(HELD))
    await session.first_event(1)
    await session.submit(6, 2, envelope(body("first come")))
    await session.submit(7, 3, envelope(body("urgent")))
    await asyncio.to_thread(session.native.update_priority, scheduling(7, priority_delta=-9))
    with anyio.fail_after(20):
        while await turns(server) != [1, 3, 2]:
            await anyio.lowlevel.checkpoint()
    await session.cancel(5)
    first, _ = await session.next_terminal()
    second, _ = await session.next_terminal()
    third, _ = await session.next_terminal()
    assert (first, second, third) == (1, 3, 2)


async def turns(server: Server) -> list[int]:
    """The frames in the order in which the engine runs them."""
    rows = (await server.engine.queue()).operations
    return [int(row.id.partition(".")[2]) for row in rows]


def reason(metadata: Any) -> Any:
    return getattr(metadata, "value", metadata).drop_reason_code


async def test_capabilities_are_agreed_and_progress_is_told(ours: Ours) -> None:
    _, session, _ = ours
    names = sorted([b"control.progress_partial", b"object.lifecycle"])
    offer = b"".join(struct.pack("<H", len(name)) + name for name in names)
    metadata = SDK.CapabilityMetadata(0, len(names), 0, 0, 0, 0, len(offer), 0)
    await asyncio.to_thread(session.native.negotiate_capabilities, metadata, offer)
    await session.submit(5, 1, envelope(HELD))
    await session.first_event(1)
    await session.cancel(5)
    await session.result(1)
    kinds = [event.header.message_type.name for event in session.other]
    (agreed,) = [e for e in session.other if e.header.message_type.name == "CAPABILITY_NEGOTIATION"]
    assert bytes(agreed.tail.body) == struct.pack("<H", 24) + b"control.progress_partial"
    assert "PROGRESS" in kinds
