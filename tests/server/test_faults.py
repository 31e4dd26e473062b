"""A fault in the server's own code, or the engine's: one operation fails, the rest lives."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched.client import Outcome, Session
from nnrp_sched.engine.records import ChatBody, ChatCall, QueueSnapshot, Reprioritized
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import ConnectionLost, ProfileError
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.profile import Cancelled, ToolCallError
from nnrp_sched.server import intake
from nnrp_sched.server.control_operation import ControlOperation
from nnrp_sched.server.observation import Observation
from nnrp_sched.server.operation import Operation
from nnrp_sched.wire import MessageType, Packet, Scheduling, ServerConnection, encode_packet
from tests.support.carriers import KINDS, Place
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, body, script, scripted_server, scripted_session

pytestmark = pytest.mark.anyio
FAULTS = pytest.mark.parametrize("fault", [RuntimeError("injected"), asyncio.CancelledError()])


class Faulty(ScriptedEngine):
    """Raises `fault`, or answers `answer`, where a test wants it."""

    def __init__(self, fault: BaseException | None = None, answer: Any = None) -> None:
        super().__init__()
        self.fault = fault
        self.answer = answer

    def _fail(self) -> None:
        if self.fault is not None:
            raise self.fault


class Uncounting(Faulty):
    def tokens(self, request_id: str) -> int | None:
        self._fail()
        return super().tokens(request_id)


class Queueless(Faulty):
    async def queue(self) -> QueueSnapshot:
        self._fail()
        return await super().queue()


class Stubborn(Faulty):
    async def reprioritize(self, request_id: str, priority: int) -> Reprioritized:
        self._fail()
        return await super().reprioritize(request_id, priority)


class Odd(Faulty):
    async def complete(self, call: ChatCall) -> ChatBody:
        answer: ChatBody = self.answer
        return answer

    async def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        async for chunk in super().stream(call):
            yield chunk


def failed(outcome: Outcome) -> bool:
    """Whether an operation ended with the error that stands for a fault."""
    return outcome.error is not None and outcome.error.code == "adapter_runtime_error"


async def lives(session: Session) -> bool:
    """Whether chats on a session are still served."""
    return (await session.chat(script(text="well"), stream=True).result()).text == "well"


async def test_an_engine_that_cannot_count_tokens_fails_the_operation_with_a_budget_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    records: list[OperationRecord] = []
    with anyio.fail_after(SECONDS):
        async with (
            scripted_server(Uncounting(RuntimeError("injected")), observers=[records.append]) as s,
            s.connect() as connection,
            connection.session() as session,
        ):
            neighbour = session.chat(script(text="n", hold=True), stream=True)
            await anext(neighbour)
            held = script(text="x", hold=True)
            assert failed(await session.chat(held, stream=True, token_budget=5).result())
            assert len(s.server.admission) == 1
            assert (await neighbour.cancel()).status == "cancelled"
            assert await lives(session)
    assert [record.outcome for record in records] == ["failed", "cancelled", "completed"]
    assert "injected" in caplog.text


async def test_a_fault_beside_the_call_closes_the_tool_calls_that_are_open() -> None:
    begun = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    engine = Uncounting()
    async with scripted_session(engine) as (_, session):
        with anyio.fail_after(SECONDS):
            chat = session.chat(script(deltas=[{"tool_calls": [begun]}], hold=True), stream=True)
            await anext(chat)
            engine.fault = RuntimeError("injected")
            chat.set_token_budget(1000)
            events = [event async for event in chat]
            assert any(isinstance(event, ToolCallError) for event in events)
            assert chat.outcome is not None
            assert failed(chat.outcome)


@FAULTS
async def test_a_queue_that_fails_answers_with_an_error_and_the_session_goes_on(
    fault: BaseException,
) -> None:
    async with scripted_session(Queueless(fault)) as (_, session):
        with anyio.fail_after(SECONDS):
            with pytest.raises(ProfileError, match="the server failed"):
                await session.queue()
            assert await lives(session)


@FAULTS
async def test_a_priority_that_cannot_be_changed_leaves_its_operation_running(
    fault: BaseException,
) -> None:
    async with scripted_session(Stubborn(fault)) as (_, session):
        with anyio.fail_after(SECONDS):
            chat = session.chat(script(text="x", hold=True), stream=True)
            await anext(chat)
            with pytest.raises(ProfileError, match="the server failed"):
                await chat.reprioritize(3)
            assert await lives(session)
            assert (await chat.cancel()).status == "cancelled"


@FAULTS
async def test_a_priority_update_that_fails_is_refused_and_its_operation_goes_on(
    fault: BaseException,
) -> None:
    async with scripted_server(Stubborn(fault)) as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, {**script(text="x", hold=True), "stream": True})
        await peer.until(lambda packets: any(each.frame_id == frame_id for each in packets))
        wish = Scheduling(
            operation_id=1001,
            control_sequence=1,
            priority_class=1,
            priority_delta=0,
            deadline_unix_ms=0,
            flags=0,
        )
        update = Packet(MessageType.PRIORITY_UPDATE, wish, session_id=session_id, frame_id=frame_id)
        await peer.send(encode_packet(update))
        refusal = MessageType.ERROR_RECOVERABLE
        await peer.until(lambda packets: packets[-1].message_type is refusal)
        assert not peer.terminals(frame_id)
        await peer.send(peer.wire.cancel(session_id, frame_id))
        assert isinstance((await peer.result(frame_id))[1], Cancelled)


@pytest.mark.parametrize("answer", [None, ["x"], "x", 7])
async def test_an_answer_that_is_no_completion_is_an_error(answer: Any) -> None:
    async with scripted_session(Odd(answer=answer)) as (_, session):
        with anyio.fail_after(SECONDS):
            assert failed(await session.chat(body()).result())
            assert await lives(session)


@pytest.mark.parametrize("choices", [["x"], {"a": 1}, None, [None]])
async def test_an_answer_with_odd_choices_goes_out_as_it_is_and_is_recorded(choices: Any) -> None:
    records: list[OperationRecord] = []
    with anyio.fail_after(SECONDS):
        async with (
            scripted_server(Odd(answer={"choices": choices}), observers=[records.append]) as served,
            served.connect() as connection,
            connection.session() as session,
        ):
            outcome = await session.chat(body()).result()
            assert outcome.body == {"choices": choices}
            assert await lives(session)
    assert [record.finish_reasons for record in records] == [(), ("stop",)]


def breaks(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    """Make our own code raise the next time it is used."""
    healthy = getattr(where, name)

    def fault(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(where, name, healthy)
        raise RuntimeError("injected")

    monkeypatch.setattr(where, name, fault)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (intake, "parse_envelope"),
        (Observation, "admitted"),
        (Observation, "close"),
        (Observation, "dispatch"),
        (Operation, "run"),
        (Operation, "_serve"),
    ],
)
async def test_a_fault_of_ours_ends_one_chat_with_an_error(
    where: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_session() as (served, session):
        with anyio.fail_after(SECONDS):
            neighbour = session.chat(script(text="n", hold=True), stream=True)
            await anext(neighbour)
            breaks(monkeypatch, where, name)
            assert failed(await session.chat(body(), diagnostics=True).result())
            assert await lives(session)
            assert (await neighbour.cancel()).status == "cancelled"
            assert len(served.server.admission) == 0
    assert "injected" in caplog.text


async def test_a_fault_of_ours_ends_one_control_request_with_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_session() as (served, session):
        with anyio.fail_after(SECONDS):
            breaks(monkeypatch, ControlOperation, "run")
            with pytest.raises(ProfileError, match="the server failed"):
                await session.queue()
            assert await lives(session)
            assert served.server.admission.control_operations == 0
    assert "injected" in caplog.text


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
async def test_a_fault_while_one_connection_is_served_ends_only_that_one(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with scripted_session(place=Place(kind, tmp_path)) as (served, session):
        with anyio.fail_after(SECONDS):
            breaks(monkeypatch, ServerConnection, "accept_session")
            async with served.connect() as unlucky:
                with pytest.raises(ConnectionLost):
                    async with unlucky.session():
                        pass
            assert await lives(session)
            async with served.connect() as later, later.session() as another:
                assert await lives(another)
    assert "injected" in caplog.text
