"""Who may see and end what: operators everything, others only their own connection's."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from nnrp_sched.client import Session
from nnrp_sched.engine.records import AbortReceipt, QueuedRequest, QueueSnapshot
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.profile.workflow import Workflow
from nnrp_sched.server.principal import Principal, operation_name
from tests.support.serving import SECONDS, InMemory, script, scripted_server

pytestmark = pytest.mark.anyio


class WithHttp(ScriptedEngine):
    """Has one request that came in over HTTP, named like an NNRP operation of session 2."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.row = QueuedRequest(
            name, "p", "a", None, "http", "running", 0.0, None, None, tokens=4, priority=0
        )

    async def queue(self) -> QueueSnapshot:
        snapshot = await super().queue()
        return msgspec.structs.replace(snapshot, operations=(*snapshot.operations, self.row))

    async def abort_operations(self, ids: object, *, by: object) -> list[AbortReceipt]:
        receipts = await super().abort_operations(ids, by=by)  # type: ignore[arg-type]
        mine = AbortReceipt(self.row.id, "running", True, True, 4, 0.1)
        if by == "id":
            return [mine if each.request_id == self.row.id else each for each in receipts]
        return [*receipts, mine]


@asynccontextmanager
async def two_peers(
    engine: ScriptedEngine, *, operator: bool
) -> AsyncGenerator[tuple[InMemory, Session, Session]]:
    """A server, a bystander's session, and one of a peer on this host or on another."""
    async with (
        scripted_server(engine) as served,
        served.connect(same_host=False) as first,
        first.session() as bystander,
        served.connect(same_host=operator) as second,
        second.session() as peer,
    ):
        with anyio.fail_after(SECONDS):
            yield served, bystander, peer


HELD = script(text="x", hold=True)
WORKFLOW = Workflow(program="p", agent="a")


@pytest.mark.parametrize("operator", [True, False])
async def test_an_operator_sees_and_ends_everything_others_only_their_own(operator: bool) -> None:
    async with two_peers(WithHttp("chatcmpl-1"), operator=operator) as (_, bystander, peer):
        others = bystander.chat(HELD, stream=True, workflow=WORKFLOW)
        await anext(others)
        own = peer.chat(HELD, stream=True, workflow=WORKFLOW)
        await anext(own)
        watching = peer.watch_queue()
        seen = [
            {row.id for row in snapshot.operations}
            for snapshot in (await peer.queue(), await anext(watching))
        ]
        await watching.aclose()
        moved = await peer.reprioritize(str(others.name), -1)
        by_id = await peer.abort_operations([str(others.name), "chatcmpl-1"])
        by_program = await peer.abort_operations(program="p")
        assert (await own.result()).status == "cancelled"
        if not operator:
            assert [row.id for row in (await bystander.queue()).operations] == [others.name]
            await others.cancel()
    everything = {others.name, own.name, "chatcmpl-1"}
    assert seen == [everything if operator else {own.name}] * 2
    assert moved.reason == ("not_waiting" if operator else "unknown")
    assert [each.accepted for each in by_id] == [operator, operator]
    assert {each.state for each in by_id} == ({"running"} if operator else {"unknown"})
    ended = {each.request_id for each in by_program if each.accepted}
    assert ended == ({own.name, "chatcmpl-1"} if operator else {own.name})


async def test_an_http_request_named_like_an_own_operation_stays_unseen() -> None:
    async with two_peers(WithHttp("2.77"), operator=False) as (_, _, peer):
        assert peer.session_id == 2
        assert (await peer.queue()).operations == ()
        (receipt,) = await peer.abort_operations(["2.77"])
    assert (receipt.state, receipt.accepted) == ("unknown", False)


async def test_the_counts_stay_the_engine_s() -> None:
    async with two_peers(ScriptedEngine(slots=1), operator=False) as (_, bystander, peer):
        others = bystander.chat(HELD, stream=True)
        await anext(others)
        snapshot = await peer.queue()
        await others.cancel()
    assert (snapshot.operations, snapshot.running) == ((), 1)


@pytest.mark.parametrize(
    ("name", "owned"),
    [
        (operation_name(7, 3), True),
        ("70.3", False),
        ("7", True),
        ("", False),
        ("x.3", False),
        ("-7.3", False),
        ("chatcmpl-7.3", False),
        ("²7.3", False),
    ],
)
def test_what_belongs_to_a_connection_is_told_by_its_sessions(name: str, owned: bool) -> None:
    assert Principal(False, lambda: {7}).owns(name) is owned
    assert Principal(True, lambda: {7}).sees(name)
