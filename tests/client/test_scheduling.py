"""The client's side of scheduling: what is sent, what comes back, what is an error."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
import pytest

from nnrp_sched.client import Session
from nnrp_sched.client.connect import over_carrier
from nnrp_sched.client.inbox import Inbox
from nnrp_sched.errors import ConnectionLost, ProfileError, ProfileStreamError
from nnrp_sched.profile import Completed, encode_event, error_document, profile_error
from nnrp_sched.profile.scheduling import AbortReceipt, QueueSnapshot, Reprioritized
from nnrp_sched.profile.workflow import Workflow
from nnrp_sched.transport import memory_pair
from nnrp_sched.wire import DropReason, SessionCloseReceived
from tests.support.raw_server import RawServer
from tests.support.serving import SECONDS, body

pytestmark = pytest.mark.anyio

SNAPSHOT = QueueSnapshot((), 0, 0, authoritative=True, taken_ms=1.0)
RECEIPT = AbortReceipt("1.1", "running", True, True, 3, 0.5)
Call = Callable[[Session], Awaitable[Any]]
REQUESTS: dict[str, tuple[Call, dict[str, Any], Any, Any]] = {
    "queue.snapshot": (lambda s: s.queue(), {}, SNAPSHOT, SNAPSHOT),
    "operation.abort": (
        lambda s: s.abort_operations(["1.1"]),
        {"ids": ["1.1"]},
        {"receipts": [RECEIPT]},
        [RECEIPT],
    ),
    "operation.reprioritize": (
        lambda s: s.reprioritize("1.1", -3),
        {"id": "1.1", "priority": -3},
        Reprioritized("1.1", False, "not_waiting"),
        Reprioritized("1.1", False, "not_waiting"),
    ),
}
"""Operation → the call, the body it sends, the answer, what the caller gets."""


class Exchange:
    """One call of a session against a server that answers as it is told."""

    def __init__(self) -> None:
        self.request: dict[str, Any] = {}

    async def run(self, call: "Call", answer: Any) -> Any:
        """Make the call; `answer` sends the server's terminal for the submit it is given."""
        ours, theirs = memory_pair()
        server = RawServer(theirs)
        results: list[Any] = []

        async def serve() -> None:
            await server.accept_session()
            submit = await server.submitted()
            self.request = msgspec.json.decode(submit.document)
            await server.send(answer(server.wire, submit))
            closing = await server.expect(SessionCloseReceived)
            await server.send(server.wire.acknowledge_session_close(closing.session_id))

        async def ask(session: Session) -> None:
            try:
                results.append(await call(session))
            except Exception as error:
                results.append(error)

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve)
                async with over_carrier(ours) as connection, connection.session() as session:
                    await ask(session)
        return results[0]


def completes(value: Any) -> Any:
    def answer(wire: Any, submit: Any) -> Any:
        document = encode_event(Completed(body=msgspec.to_builtins(value)))
        return wire.push_result(submit.session_id, submit.frame_id, document)

    return answer


@pytest.mark.parametrize("operation", REQUESTS)
async def test_each_request_sends_its_body_and_reads_its_answer(operation: str) -> None:
    call, sent, answer, expected = REQUESTS[operation]
    exchange = Exchange()
    assert await exchange.run(call, completes(answer)) == expected
    assert exchange.request == {
        "schema_version": "nnrp-sched-control/1",
        "operation": operation,
        "body": sent,
    }


@pytest.mark.parametrize("operation", REQUESTS)
async def test_a_refusal_is_an_error_with_its_code(operation: str) -> None:
    def refuses(wire: Any, submit: Any) -> Any:
        document = encode_event(error_document(profile_error("unsupported_operation", "never")))
        return wire.push_result(submit.session_id, submit.frame_id, document)

    error = await Exchange().run(REQUESTS[operation][0], refuses)
    assert isinstance(error, ProfileError)
    assert (error.code, error.message) == ("unsupported_operation", "never")


@pytest.mark.parametrize("operation", REQUESTS)
async def test_a_request_that_is_dropped_is_a_lost_one(operation: str) -> None:
    def drops(wire: Any, submit: Any) -> Any:
        reason = DropReason.TRANSPORT_CLOSED
        return wire.drop_result(submit.session_id, submit.frame_id, reason, "server_shutdown")

    error = await Exchange().run(REQUESTS[operation][0], drops)
    assert isinstance(error, ConnectionLost)
    assert "server_shutdown" in str(error)


@pytest.mark.parametrize("operation", REQUESTS)
async def test_an_answer_of_another_form_is_a_fault_of_the_server(operation: str) -> None:
    error = await Exchange().run(REQUESTS[operation][0], completes({"nothing": "of it"}))
    assert isinstance(error, ProfileStreamError)


async def test_a_watch_that_the_server_refuses_raises_instead_of_ending() -> None:
    async def watch(session: Session) -> Any:
        async with aclosing(session.watch_queue(per_second=3)) as snapshots:
            return [snapshot async for snapshot in snapshots]

    def refuses(wire: Any, submit: Any) -> Any:
        document = encode_event(error_document(profile_error("backend_error", "broken")))
        return wire.push_result(submit.session_id, submit.frame_id, document)

    exchange = Exchange()
    error = await exchange.run(watch, refuses)
    assert isinstance(error, ProfileError)
    assert exchange.request["body"] == {"per_second": 3.0}


async def test_workflow_priority_and_key_ride_in_the_envelope_beside_other_extensions() -> None:
    async def chat(session: Session) -> Any:
        asked = Workflow(program="p", agent="a", step=2)
        extensions = {"mine": 1}
        return await session.chat(
            body(),
            workflow=asked,
            priority=-2,
            idempotency_key="once",
            timeout_ms=5,
            extensions=extensions,
        ).result()

    exchange = Exchange()
    await exchange.run(chat, completes({}))
    assert exchange.request["nnrp"] == {
        "workflow": {"program": "p", "agent": "a", "step": 2},
        "priority": -2,
        "idempotency_key": "once",
        "mine": 1,
        "timeout_ms": 5,
    }


async def test_without_them_nothing_is_sent() -> None:
    async def chat(session: Session) -> Any:
        return await session.chat(body()).result()

    exchange = Exchange()
    await exchange.run(chat, completes({}))
    assert "nnrp" not in exchange.request


@pytest.mark.parametrize("wanted", [{}, {"ids": ["1"], "agent": "a"}])
async def test_an_abort_of_nothing_or_of_two_kinds_is_never_sent(wanted: dict[str, Any]) -> None:
    exchange = Exchange()

    async def abort(session: Session) -> Any:
        with pytest.raises(ValueError, match="exactly one"):
            await session.abort_operations(**wanted)
        return await session.queue()

    await exchange.run(abort, completes(SNAPSHOT))
    assert exchange.request["operation"] == "queue.snapshot"


async def test_an_inbox_of_the_newest_only_never_overflows() -> None:
    inbox = Inbox(2, newest_only=True)
    for number in range(10):
        assert inbox.put(str(number).encode())
    assert not inbox.overflowed
    assert await inbox.get() == b"9"
    inbox.finish(ConnectionLost("gone"))
    assert isinstance(await inbox.get(), ConnectionLost)
