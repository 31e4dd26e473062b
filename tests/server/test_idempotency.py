"""`nnrp.idempotency_key`: a retry joins what runs or gets what came of it; nothing runs twice."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nnrp_sched.client import Chat, Outcome, Session
from nnrp_sched.engine.records import AbortReceipt
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.profile import Cancelled, Completed, Event, OutputTextDelta, build_envelope
from nnrp_sched.profile.workflow import Workflow
from nnrp_sched.server import ServerLimits
from nnrp_sched.wire import DropReason, InFlightPolicy, ResultDropped
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, InMemory, body, script, scripted_server
from tests.support.stepped_engine import SteppedEngine, stepped

pytestmark = pytest.mark.anyio

KEY = "again"
ABC = stepped("a", "b", "c")
KEYED = {"idempotency_key": KEY}


class Case:
    """A server, its engine, one session of a client, and what is known of the operations."""

    def __init__(self, served: InMemory, engine: SteppedEngine, session: Session) -> None:
        self.served = served
        self.engine = engine
        self.session = session
        self.records: list[OperationRecord] = []

    def chat(self, chat: dict[str, Any] = ABC, *, key: str = KEY, **members: Any) -> Chat:
        """A streaming chat with the key."""
        return self.session.chat(chat, stream=True, idempotency_key=key, **members)

    async def raw(self, *, same_host: bool = True) -> RawPeer:
        """A peer of its own, with one session open."""
        peer = RawPeer(self.served.dial(same_host=same_host))
        await peer.open()
        return peer

    async def lost(self, chat: dict[str, Any] = ABC, *, events: int = 0) -> str:
        """Submit on a connection that is lost after so many events; the operation's id."""
        peer = await self.raw()
        (session_id,) = peer.wire.session_ids
        frame_id = await peer.submit(session_id, chat | {"stream": True}, extensions=KEYED)
        calls = len(self.engine.calls)
        await self.until(lambda: len(self.engine.calls) > calls or bool(events))
        self.engine.let(events)
        await peer.until(
            lambda packets: sum(packet.frame_id == frame_id for packet in packets) >= events
        )
        await peer.carrier.aclose()
        await self.until(lambda: any(record.frame_id == frame_id for record in self.records))
        return f"{session_id}.{frame_id}"

    async def until(self, holds: Any) -> None:
        """Wait until something holds."""
        with anyio.fail_after(SECONDS):
            while not holds():
                await anyio.lowlevel.checkpoint()

    async def until_idle(self) -> None:
        """Wait until the engine has no call and the server no operation."""
        keys, admission = self.served.server.keys, self.served.server.admission
        await self.until(lambda: not len(admission) and not keys.task_count)
        assert (await self.engine.queue()).operations == ()

    async def rows(self) -> list[str]:
        """The ids that `ps` shows."""
        return [row.id for row in (await self.session.queue()).operations]


@asynccontextmanager
async def case(
    limits: ServerLimits | None = None, *, slots: int | None = None
) -> AsyncGenerator[Case, None]:
    """Everything is over and forgotten at the end, and no task is left."""
    engine = SteppedEngine(slots=slots)
    records: list[OperationRecord] = []
    before = asyncio.all_tasks()
    with anyio.fail_after(SECONDS):
        async with (
            scripted_server(engine, limits, observers=[records.append]) as served,
            served.connect() as connection,
            connection.session() as session,
        ):
            made = Case(served, engine, session)
            made.records = records
            yield made
        keys = served.server.keys
        assert (len(keys), keys.kept_bytes, keys.task_count) == (0, 0, 0)
        assert len(served.server.admission) == 0
        assert (await engine.queue()).operations == ()
        while asyncio.all_tasks() - before:
            await anyio.lowlevel.checkpoint()


async def whole(chat: Chat) -> tuple[list[Event], Outcome]:
    """All events of a chat, and how it ended."""
    events = [event async for event in chat]
    assert chat.outcome is not None
    return events, chat.outcome


async def both(*chats: Chat) -> list[tuple[list[Event], Outcome]]:
    """Read several chats to their ends at once."""
    found: dict[int, tuple[list[Event], Outcome]] = {}

    async def read(number: int, chat: Chat) -> None:
        found[number] = await whole(chat)

    async with anyio.create_task_group() as tasks:
        for number, chat in enumerate(chats):
            tasks.start_soon(read, number, chat)
    return [found[number] for number in range(len(chats))]


def texts(events: list[Event]) -> list[str]:
    return [event.delta for event in events if isinstance(event, OutputTextDelta) and event.delta]


# --- joining --------------------------------------------------------------------------------------


async def test_T52_two_requests_with_one_key_at_once_are_one_engine_call() -> None:
    async with case() as it:
        it.engine.let(3)
        (first, one), (second, two) = await both(it.chat(), it.chat())
        assert len(it.engine.calls) == 1
    assert first == second
    assert texts(first) == ["a", "b", "c"]
    assert one == two
    assert one.status == "completed"


async def test_T52_nine_nested_retries_are_one_engine_call() -> None:
    async with case() as it:
        it.engine.let(3)
        ends = await both(*(it.chat() for _ in range(9)))
        assert len(it.engine.calls) == 1
        assert len({record.id for record in it.records}) == 9
    assert all(outcome.text == "abc" for _, outcome in ends)


async def test_a_retry_joins_while_the_first_waits_in_the_queue() -> None:
    async with case(slots=1) as it:
        blocker = it.session.chat(script(text="x", hold=True), stream=True)
        await anext(blocker)
        first, second = it.chat(), it.chat()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.result)
            await it.until(lambda: len(it.engine.calls) == 2)
            tasks.start_soon(second.result)
            await it.until(lambda: len(it.served.server.admission) == 3)
            assert await it.rows() == [blocker.name, first.name]
            await blocker.cancel()
            it.engine.let(3)
        assert first.outcome == second.outcome
        assert len(it.engine.calls) == 2


async def test_a_retry_gets_the_stream_from_its_beginning_and_goes_on_live() -> None:
    async with case() as it:
        first, second = it.chat(), it.chat()
        it.engine.let(2)
        heard = [await anext(first), await anext(first)]
        repeated = [await anext(second), await anext(second)]
        assert heard == repeated
        assert await it.rows() == [first.name]
        it.engine.let(1)
        ends = await both(first, second)
        assert len(it.engine.calls) == 1
    assert ends[0] == ends[1]
    assert [outcome.text for _, outcome in ends] == ["abc", "abc"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_retry_after_the_end_gets_the_outcome(stream: bool) -> None:
    async with case() as it:
        it.engine.let(3)
        chats = [it.session.chat(ABC, stream=stream, idempotency_key=KEY) for _ in range(2)]
        first, second = [await whole(chat) for chat in chats]
        assert len(it.engine.calls) == 1
    assert first == second
    assert first[1].text == "abc"


async def test_answers_that_come_whole_are_shared_too() -> None:
    async with case() as it:
        it.engine.let(3)
        chats = [it.session.chat(ABC, idempotency_key=KEY) for _ in range(2)]
        (_, first), (_, second) = await both(*chats)
        assert len(it.engine.calls) == 1
    assert first == second
    assert first.usage is not None


async def test_an_outcome_is_forgotten_when_its_time_is_over() -> None:
    async with case(ServerLimits(key_seconds=0.05)) as it:
        it.engine.let(6)
        await it.chat().result()
        await it.until(lambda: not len(it.served.server.keys))
        assert it.served.server.keys.kept_bytes == 0
        await it.chat().result()
        assert len(it.engine.calls) == 2


async def test_other_hints_do_not_make_it_another_request() -> None:
    async with case() as it:
        it.engine.let(3)
        first = await it.chat(timeout_ms=60_000, request_id="one").result()
        workflow = Workflow(program="p", step=2)
        second = await it.chat(request_id="two", priority=7, workflow=workflow).result()
        reordered = dict(reversed((ABC | {"stream": True}).items()))
        third = await it.session.chat(reordered, idempotency_key=KEY).result()
        assert len(it.engine.calls) == 1
    assert first == second == third


async def test_without_a_key_the_same_request_runs_again() -> None:
    async with case() as it:
        it.engine.let(6)
        for _ in range(2):
            await it.session.chat(ABC, stream=True, request_id="label").result()
        assert len(it.engine.calls) == 2
        assert len(it.served.server.keys) == 0


@pytest.mark.parametrize("ended", [False, True])
async def test_a_key_used_for_another_body_is_refused(ended: bool) -> None:
    async with case() as it:
        first = it.chat()
        it.engine.let(3)
        if ended:
            await first.result()
        else:
            await anext(first)
        other = await it.chat(ABC | {"temperature": 0.5}).result()
        assert len(it.engine.calls) == 1
        assert (await first.result()).text == "abc"
    assert other.error is not None
    assert other.error.code == "invalid_nnrp_policy"
    assert "idempotency_key" in other.error.message


@pytest.mark.parametrize("value", ["", "x" * 257, 5, None, True, ["k"], {"k": 1}])
async def test_what_cannot_be_a_key_is_refused(value: Any) -> None:
    async with case() as it:
        outcome = await it.session.chat(ABC, extensions={"idempotency_key": value}).result()
        assert it.engine.calls == []
    assert outcome.error is not None
    assert outcome.error.code == "invalid_nnrp_policy"
    assert "nnrp.idempotency_key" in outcome.error.message


async def test_another_principals_key_is_another_key() -> None:
    async with case() as it:
        mine = it.chat()
        it.engine.let(1)
        await anext(mine)
        async with (
            it.served.connect(same_host=False) as connection,
            connection.session() as session,
        ):
            theirs = session.chat(ABC | {"seed": 3}, stream=True, idempotency_key=KEY)
            it.engine.let(5)
            (_, one), (_, two) = await both(mine, theirs)
        assert len(it.engine.calls) == 2
    assert (one.text, two.text) == ("abc", "abc")


async def test_a_retry_of_what_failed_tries_again_and_those_that_shared_it_all_fail() -> None:
    failing = stepped("a", "b", fail_after=1)
    async with case() as it:
        it.engine.let(2)
        ends = await both(it.chat(failing), it.chat(failing))
        assert len(it.engine.calls) == 1
        it.engine.let(2)
        again = await it.chat(failing).result()
        assert len(it.engine.calls) == 2
    for outcome in (ends[0][1], ends[1][1], again):
        assert outcome.error is not None
        assert outcome.error.code == "backend_error"
        assert outcome.text == "a"


async def test_the_capability_document_declares_it() -> None:
    async with case() as it:
        document = await it.session.capabilities()
    (found,) = [e for e in document["extensions"] if e["name"] == "nnrp.idempotency_key"]
    assert found["critical"] is False


# --- lost connections -----------------------------------------------------------------------------


async def test_T53_a_retry_joins_what_its_lost_connection_left_running() -> None:
    async with case() as it:
        lost = await it.lost(events=1)
        assert await it.rows() == [lost]
        retry = it.chat()
        assert texts([await anext(retry)]) == ["a"]
        assert await it.rows() == [retry.name]
        it.engine.let(2)
        outcome = await retry.result()
        assert len(it.engine.calls) == 1
        (gone,) = [record for record in it.records if record.id == lost]
    assert outcome.text == "abc"
    assert gone.outcome == "silent"
    assert gone.abort is not None
    assert gone.abort.receipt == AbortReceipt(lost, "running", False, True, 1, 0.0)


async def test_what_ends_in_the_grace_is_there_for_the_retry() -> None:
    async with case(ServerLimits(key_grace_seconds=60)) as it:
        await it.lost(events=1)
        it.engine.let(2)
        await it.until(lambda: not it.served.server.keys.task_count)
        assert len(it.served.server.admission) == 0
        assert (await it.chat().result()).text == "abc"
        assert len(it.engine.calls) == 1


async def test_after_the_grace_the_engine_is_idle_and_a_retry_begins_anew() -> None:
    async with case(ServerLimits(key_grace_seconds=0.05)) as it:
        await it.lost(events=1)
        assert len((await it.engine.queue()).operations) == 1
        assert len(it.served.server.admission) == 1  # The call keeps its place as long as it runs.
        await it.until_idle()
        assert len(it.served.server.keys) == 0
        it.engine.let(3)
        assert (await it.chat().result()).text == "abc"
        assert len(it.engine.calls) == 2


@pytest.mark.parametrize(("grace", "extensions"), [(60.0, {}), (0.0, KEYED)])
async def test_without_a_key_or_a_grace_a_lost_operation_is_aborted_at_once(
    grace: float, extensions: dict[str, Any]
) -> None:
    async with case(ServerLimits(key_grace_seconds=grace)) as it:
        peer = await it.raw()
        (session_id,) = peer.wire.session_ids
        await peer.submit(session_id, ABC, extensions=extensions)
        await it.until(lambda: it.engine.calls)
        await peer.carrier.aclose()
        await it.until_idle()
        (record,) = it.records
    assert record.abort is not None
    assert record.abort.reason == "lost"
    assert record.abort.receipt is not None
    assert record.abort.receipt.accepted


@pytest.mark.parametrize("farewell", ["close", "session"])
async def test_a_client_that_says_that_it_leaves_has_no_grace(farewell: str) -> None:
    async with case(ServerLimits(key_grace_seconds=60)) as it:
        peer = await it.raw()
        (session_id,) = peer.wire.session_ids
        await peer.submit(session_id, ABC, extensions=KEYED)
        await it.until(lambda: it.engine.calls)
        if farewell == "close":
            await peer.send(peer.wire.close())
        else:
            await peer.send(peer.wire.close_session(session_id, policy=InFlightPolicy.ABORT))
        await it.until_idle()
        (record,) = it.records
        await peer.carrier.aclose()
    assert record.abort is not None
    assert record.abort.reason == "session"
    assert record.abort.receipt is not None
    assert record.abort.receipt.accepted


async def test_the_second_lost_connection_begins_a_grace_of_its_own() -> None:
    async with case(ServerLimits(key_grace_seconds=60)) as it:
        await it.lost(events=1)
        await it.lost(events=1)
        it.engine.let(1)
        assert (await it.chat().result()).text == "abc"
        assert len(it.engine.calls) == 1


async def test_two_callers_on_one_lost_connection_leave_one_grace() -> None:
    async with case(ServerLimits(key_grace_seconds=0.05)) as it:
        peer = await it.raw()
        (session_id,) = peer.wire.session_ids
        for _ in range(2):
            await peer.submit(session_id, ABC, extensions=KEYED)
        await it.until(lambda: len(it.served.server.admission) == 2)
        await it.until(lambda: it.engine.calls)
        await peer.carrier.aclose()
        await it.until(lambda: len(it.records) == 2)
        await it.until_idle()
        assert len(it.engine.calls) == 1


async def test_a_draining_server_waits_for_nobody_to_come_back() -> None:
    async with case(ServerLimits(key_grace_seconds=60)) as it:
        await it.lost()
        it.served.server.admission.draining = True
        await it.served.server.keys.aclose()
        await it.until_idle()


# --- endings of one of several --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "abort"])
@pytest.mark.parametrize("who", [0, 1])
async def test_a_cancel_by_one_of_two_ends_its_own_operation_alone(how: str, who: int) -> None:
    async with case() as it:
        chats = [it.chat(), it.chat()]
        it.engine.let(1)
        for chat in chats:
            await anext(chat)
        outcome = await getattr(chats[who], how)()
        assert outcome.status == "cancelled"
        assert await it.rows() == [chats[1 - who].name]
        it.engine.let(2)
        assert (await chats[1 - who].result()).text == "abc"
        assert len(it.engine.calls) == 1
        ended = next(record for record in it.records if record.id == chats[who].name)
    assert ended.abort is not None
    assert ended.abort.receipt is not None
    assert not ended.abort.receipt.accepted
    assert ended.abort.receipt.state == "running"


@pytest.mark.parametrize("how", ["cancel", "abort"])
async def test_a_cancel_by_the_only_caller_aborts_at_once(how: str) -> None:
    async with case(ServerLimits(key_grace_seconds=60)) as it:
        first, second = it.chat(), it.chat()
        it.engine.let(1)
        for chat in (first, second):
            await anext(chat)
        for chat in (first, second):
            assert (await getattr(chat, how)()).status == "cancelled"
        await it.until_idle()
        last = next(record for record in it.records if record.id == second.name)
        # What was cut short is no answer: the same key begins anew.
        it.engine.let(3)
        assert (await it.chat().result()).text == "abc"
        assert len(it.engine.calls) == 2
    assert last.abort is not None
    assert last.abort.receipt is not None
    assert (last.abort.receipt.accepted, last.abort.receipt.tokens) == (True, 1)


async def test_a_cancel_in_the_same_bytes_as_the_submit_leaves_the_other_alone() -> None:
    async with case() as it:
        first = it.chat()
        it.engine.let(1)
        await anext(first)
        peer = await it.raw()
        (session_id,) = peer.wire.session_ids
        document = build_envelope(ABC | {"stream": True}, extensions=KEYED)
        frame_id, submit = peer.wire.submit(session_id, document, operation_id=7)
        await peer.send(submit + peer.wire.cancel(session_id, frame_id))
        _, terminal = await peer.result(frame_id)
        assert isinstance(terminal, Cancelled)
        it.engine.let(2)
        assert (await first.result()).text == "abc"
        await peer.carrier.aclose()


async def test_the_deadline_of_one_is_not_the_others() -> None:
    async with case() as it:
        hasty, patient = it.chat(timeout_ms=1), it.chat()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hasty.result)
            tasks.start_soon(patient.result)
            await it.until(lambda: hasty.outcome is not None)
            it.engine.let(3)
        assert len(it.engine.calls) == 1
    assert hasty.outcome is not None
    assert hasty.outcome.error is not None
    assert hasty.outcome.error.code == "request_timeout"
    assert patient.outcome is not None
    assert patient.outcome.text == "abc"


async def test_the_budget_of_one_is_not_the_others() -> None:
    async with case() as it:
        poor, rich = it.chat(token_budget=2), it.chat()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poor.result)
            tasks.start_soon(rich.result)
            await it.until(lambda: it.engine.calls)
            await it.until(lambda: len(it.served.server.admission) == 2)
            it.engine.let(2)
            await it.until(lambda: poor.outcome is not None)
            it.engine.let(1)
        assert len(it.engine.calls) == 1
    cut = poor.outcome
    assert cut is not None
    assert (cut.status, cut.text) == ("completed", "ab")
    assert cut.body is not None
    assert cut.body["choices"][0]["finish_reason"] == "length"
    assert rich.outcome is not None
    assert rich.outcome.text == "abc"


async def test_the_budget_of_the_last_caller_is_kept_to_in_the_engine() -> None:
    async with case() as it:
        first, second = it.chat(token_budget=2), it.chat(token_budget=2)
        it.engine.let(2)
        ends = await both(first, second)
        await it.until_idle()
        assert len(it.engine.calls) == 1
    for _, outcome in ends:
        assert (outcome.status, outcome.text) == ("completed", "ab")


async def test_a_whole_answer_cannot_be_cut_for_one_of_two() -> None:
    async with case() as it:
        poor = it.session.chat(ABC, idempotency_key=KEY, token_budget=2)
        rich = it.session.chat(ABC, idempotency_key=KEY)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poor.result)
            tasks.start_soon(rich.result)
            await it.until(lambda: len(it.served.server.admission) == 2)
            it.engine.let(2)
            await it.until(lambda: poor.outcome is not None)
            it.engine.let(1)
    assert poor.outcome is not None
    assert (poor.outcome.status, poor.outcome.reason) == ("dropped", "budget_exceeded")
    assert rich.outcome is not None
    assert rich.outcome.text == "abc"


async def test_a_control_abort_of_one_detaches_and_of_the_last_one_aborts() -> None:
    async with case() as it:
        first, second = it.chat(), it.chat()
        it.engine.let(1)
        for chat in (first, second):
            await anext(chat)
        assert first.name is not None
        assert second.name is not None
        (detached,) = await it.session.abort_operations([first.name])
        assert (await first.result()).status == "cancelled"
        # The engine knows the call by the first one's id, which means nothing any more.
        (gone,) = await it.session.abort_operations([first.name])
        (receipt,) = await it.session.abort_operations([second.name])
        assert (await second.result()).status == "cancelled"
        await it.until_idle()
    assert detached == AbortReceipt(first.name, "running", False, True, 1, 0.0)
    assert (gone.state, gone.accepted) == ("unknown", False)
    assert (receipt.request_id, receipt.state) == (second.name, "running")
    assert (receipt.accepted, receipt.authoritative, receipt.tokens) == (True, True, 1)


async def test_a_cancelled_program_ends_all_its_parts_of_a_call_with_one_receipt_each() -> None:
    async with case() as it:
        chats = [it.chat(workflow=Workflow(program="p")) for _ in range(3)]
        it.engine.let(1)
        for chat in chats:
            await anext(chat)
        receipts = await it.session.abort_operations(program="p")
        assert [(await chat.result()).status for chat in chats] == ["cancelled"] * 3
        await it.until_idle()
    assert [each.request_id for each in receipts] == [chat.name for chat in chats]
    assert [each.accepted for each in receipts] == [False, False, True]


async def test_an_abort_by_the_id_of_a_lost_operation_ends_its_grace() -> None:
    async with case(ServerLimits(key_grace_seconds=60)) as it:
        lost = await it.lost(events=1)
        (receipt,) = await it.session.abort_operations([lost])
        await it.until_idle()
        it.engine.let(3)
        assert (await it.chat().result()).text == "abc"
        assert len(it.engine.calls) == 2
    assert (receipt.state, receipt.accepted) == ("running", True)


async def test_a_priority_of_any_caller_moves_the_one_call() -> None:
    async with case(slots=1) as it:
        blocker = it.session.chat(script(text="x", hold=True), stream=True)
        await anext(blocker)
        first, second = it.chat(), it.chat()
        async with anyio.create_task_group() as tasks:
            for number, chat in enumerate((first, second), 2):
                tasks.start_soon(chat.result)
                await it.until(lambda n=number: len(it.served.server.admission) == n)
            await it.until(lambda: len(it.engine.calls) == 2)
            done = await second.reprioritize(-4)
            assert (done.request_id, done.applied) == (second.name, True)
            (_, row) = (await it.session.queue()).operations
            assert row.priority == -4
            await blocker.cancel()
            it.engine.let(3)


async def test_others_see_the_call_under_their_own_operation() -> None:
    async with case() as it:
        peer = RawPeer(it.served.dial(same_host=False))
        session_id = await peer.open()
        await peer.submit(session_id, ABC, extensions=KEYED)
        await it.until(lambda: it.engine.calls)
        async with (
            it.served.connect(same_host=False) as connection,
            connection.session() as session,
        ):
            joined = session.chat(ABC, idempotency_key=KEY)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(joined.result)
                await it.until(lambda: len(it.served.server.admission) == 2)
                (row,) = (await session.queue()).operations
                assert row.id == joined.name
                assert await it.rows() == [f"{session_id}.1"]
                it.engine.let(3)
        await peer.carrier.aclose()


# --- bounds ---------------------------------------------------------------------------------------


async def test_a_further_key_is_refused_when_all_of_a_principal_are_in_use() -> None:
    async with case(ServerLimits(max_keys_per_principal=2)) as it:
        running = [it.chat(key=str(number)) for number in range(2)]
        async with anyio.create_task_group() as tasks:
            for chat in running:
                tasks.start_soon(chat.result)
            await it.until(lambda: len(it.engine.calls) == 2)
            refused = await it.chat(key="2").result()
            assert refused.error is not None
            assert refused.error.code == "adapter_operation_limit"
            assert "retry later" in refused.error.message
            async with (
                it.served.connect(same_host=False) as connection,
                connection.session() as session,
            ):
                await session.chat(body(), idempotency_key="2").result()
            it.engine.let(6)
        # Ended ones give way, the oldest first.
        it.engine.let(3)
        assert (await it.chat(key="2").result()).text == "abc"
        assert len(it.engine.calls) == 4
        await it.chat(key="1").result()
        assert len(it.engine.calls) == 4
        it.engine.let(3)
        await it.chat(key="0").result()
        assert len(it.engine.calls) == 5


async def test_the_whole_servers_keys_are_bounded_too() -> None:
    async with case(ServerLimits(max_keys=1)) as it:
        running = it.chat()
        it.engine.let(1)
        await anext(running)
        async with (
            it.served.connect(same_host=False) as connection,
            connection.session() as session,
        ):
            refused = await session.chat(ABC, idempotency_key="other").result()
            assert refused.error is not None
            assert refused.error.code == "adapter_operation_limit"
            it.engine.let(2)
            assert (await running.result()).text == "abc"
            it.engine.let(3)
            await session.chat(ABC, idempotency_key="other").result()
        assert len(it.served.server.keys) == 1


@pytest.mark.parametrize("bound", ["key_answer_bytes", "key_bytes", "key_bytes_per_principal"])
async def test_an_answer_too_long_to_be_kept_takes_nobody_in(bound: str) -> None:
    async with case(ServerLimits(**{bound: 1000})) as it:
        first = it.chat(script(text="x", hold=True))
        await anext(first)
        long = it.chat(stepped("a", *["y" * 1000] * 3), key="long")
        it.engine.let(2)
        await anext(long)
        await anext(long)
        refused = await it.chat(stepped("a", *["y" * 1000] * 3), key="long").result()
        assert refused.error is not None
        assert refused.error.code == "scheduler_rejected"
        assert "retry once it has ended" in refused.error.message
        it.engine.let(2)
        assert (await long.result()).text == "a" + "y" * 3000
        await first.cancel()


async def test_an_answer_too_long_to_be_kept_has_no_grace() -> None:
    limits = ServerLimits(key_answer_bytes=1000, key_grace_seconds=60)
    async with case(limits) as it:
        await it.lost(stepped("a", "y" * 1000, "z"), events=2)
        await it.until_idle()


async def test_an_answer_that_grows_too_long_in_the_grace_ends_it() -> None:
    limits = ServerLimits(key_answer_bytes=1000, key_grace_seconds=60)
    async with case(limits) as it:
        await it.lost(stepped("a", "y" * 1000, "z"), events=1)
        assert len((await it.engine.queue()).operations) == 1
        it.engine.let(1)
        await it.until_idle()


async def test_a_slow_reader_of_a_long_answer_misses_nothing_and_is_waited_for() -> None:
    pieces = [f"{number:04d}" * 250 for number in range(3000)]
    limits = ServerLimits(
        key_answer_bytes=64 * 1024, send_queue_bytes=32 * 1024, operation_queue_bytes=32 * 1024
    )
    async with case(limits) as it:
        chat = script(text=pieces)
        peer = await it.raw()
        (session_id,) = peer.wire.session_ids
        quick = it.chat(chat)
        async with anyio.create_task_group() as tasks:
            frame_id = await peer.submit(session_id, chat | {"stream": True}, extensions=KEYED)
            tasks.start_soon(quick.result)
            await it.until(lambda: len(it.served.server.admission) == 2)
            # More than the pipe between the two ends holds: the engine is not asked for it all.
            waiting = 0
            while waiting != (waiting := it.served.server.keys.kept_bytes) or waiting < 64 * 1024:
                for _ in range(200):
                    await anyio.lowlevel.checkpoint()
            assert waiting < 200 * 1024
            events, terminal = await peer.result(frame_id)
            assert isinstance(terminal, Completed)
            assert texts(events) == pieces
        assert quick.outcome is not None
        assert quick.outcome.text == "".join(pieces)
        assert len(it.engine.calls) == 1
        await peer.carrier.aclose()


async def test_a_reader_that_stops_is_lost_and_the_other_goes_on() -> None:
    limits = ServerLimits(
        key_answer_bytes=64 * 1024,
        send_queue_bytes=32 * 1024,
        operation_queue_bytes=32 * 1024,
        slow_reader_seconds=0.1,
    )
    async with case(limits) as it:
        chat = script(text="y" * 1000, repeat=4000)
        peer = await it.raw()
        (session_id,) = peer.wire.session_ids
        frame_id = await peer.submit(session_id, chat | {"stream": True}, extensions=KEYED)
        outcome = await it.chat(chat).result()
        assert len(outcome.text) == 4_000_000
        assert len(it.engine.calls) == 1
        _, terminal = await peer.result(frame_id)
        await peer.carrier.aclose()
    assert isinstance(terminal, ResultDropped)
    assert terminal.reason is DropReason.BACKPRESSURE


async def test_bytes_of_ended_answers_give_way_to_new_ones() -> None:
    async with case(ServerLimits(key_bytes=10_000)) as it:
        for number in range(20):
            it.engine.let(1)
            await it.chat(stepped("y" * 2000), key=str(number)).result()
            assert it.served.server.keys.kept_bytes <= 10_000
        kept = len(it.served.server.keys)
        assert 0 < kept < 20
        await it.chat(stepped("y" * 2000), key="19").result()
        assert len(it.engine.calls) == 20


async def test_an_operation_that_joins_takes_a_place_and_a_full_server_refuses_it() -> None:
    async with case(ServerLimits(max_operations=2)) as it:
        first, second = it.chat(), it.chat()
        it.engine.let(1)
        await anext(first)
        await anext(second)
        refused = await it.chat().result()
        assert refused.error is not None
        assert refused.error.code == "adapter_operation_limit"
        it.engine.let(2)
        for chat in (first, second):
            assert (await chat.result()).text == "abc"


async def test_the_engines_times_are_told_once() -> None:
    async with case() as it:
        it.engine.let(3)
        await both(it.chat(), it.chat())
        await it.chat().result()
        timed = [record for record in it.records if record.timings.finished is not None]
        assert len(it.records) == 3
    assert len(timed) == 1


async def test_an_engine_that_fails_in_its_own_way_is_a_fault_for_all() -> None:
    class Broken(SteppedEngine):
        async def complete(self, call: Any) -> Any:
            self.calls.append(call)
            raise asyncio.CancelledError

    engine = Broken()
    async with (
        scripted_server(engine) as served,
        served.connect() as connection,
        connection.session() as session,
    ):
        chats = [session.chat(body(), idempotency_key=KEY) for _ in range(2)]
        ends = await both(*chats)
        assert len(served.server.keys) == 0
    assert len(engine.calls) == 1
    for _, outcome in ends:
        assert outcome.error is not None
        assert outcome.error.code == "adapter_runtime_error"
