"""Servers that do not do as they are told, and those that cannot: budgets hold all the same."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from nnrp_sched.client import Connection
from nnrp_sched.client.connect import over_carrier
from nnrp_sched.errors import ProfileStreamError
from nnrp_sched.profile import Cancelled, Completed, OutputTextDelta, encode_event
from nnrp_sched.transport import Carrier, memory_pair
from nnrp_sched.wire import (
    CancelReceived,
    Limits,
    Reply,
    ServerConnection,
    ServerEvent,
    SessionCloseReceived,
    SessionOpenReceived,
    SubmitReceived,
)
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.budget import Budget
from nnrp_sched_orchestrator.errors import BudgetExceeded
from nnrp_sched_orchestrator.grants import MARGIN
from nnrp_sched_orchestrator.orchestrator import Orchestrator
from tests.support.programs import SECONDS
from tests.support.server_stage import quick
from tests.support.serving import body

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]

PIECE = encode_event(OutputTextDelta(index=0, delta="w "))


def ended(tokens: int) -> bytes:
    """An answer that says that it was cut, and how long it is."""
    choice = {"index": 0, "finish_reason": "length", "message": {"content": None}}
    counts = {"completion_tokens": tokens}
    return encode_event(Completed(body={"choices": [choice], "usage": counts}))


class WordyServer:
    """A bare server: it reads the limits in a body, or not even those, and no budgets."""

    def __init__(self, *, obeys: bool, most: int = 1000, terminal: bytes | None = None) -> None:
        self.obeys = obeys
        self.most = most
        self.terminal = terminal
        self.produced: list[int] = []
        """The tokens of each call."""

    @asynccontextmanager
    async def connect(self, _name: str) -> AsyncGenerator[Connection, None]:
        ours, theirs = memory_pair()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._serve, theirs)
            async with over_carrier(ours) as connection:
                yield connection
            tasks.cancel_scope.cancel()

    async def _serve(self, carrier: Carrier) -> None:
        wire = ServerConnection(Limits(), offers=frozenset())
        while data := await carrier.receive():
            for event in wire.receive(data):
                for answer in self._answers(wire, event):
                    await carrier.send(answer)

    def _answers(self, wire: ServerConnection, event: ServerEvent) -> list[bytes]:
        match event:
            case Reply():
                return [event.data]
            case SessionOpenReceived():
                opened = wire.accept_session(event, 1, max_in_flight=8, operation_credit=8)
                return [opened]
            case SubmitReceived():
                return self._say(wire, event)
            case CancelReceived() if wire.in_flight(event.session_id, event.frame_id):
                cancelled = encode_event(Cancelled(reason="client_cancel"))
                return [wire.push_result(event.session_id, event.frame_id, cancelled)]
            case SessionCloseReceived():
                return [wire.acknowledge_session_close(event.session_id)]
            case _:
                return []

    def _say(self, wire: ServerConnection, submit: SubmitReceived) -> list[bytes]:
        at = (submit.session_id, submit.frame_id)
        asked = msgspec.json.decode(submit.document or b"{}")
        if asked["operation"] != "chat.completions.create":
            return [wire.push_result(*at, encode_event(Completed(body={})))]
        limits = [asked["body"].get(name) for name in ("max_completion_tokens", "max_tokens")]
        limit = next((limit for limit in limits if limit), self.most)
        count = min(limit, self.most) if self.obeys else self.most
        self.produced.append(count)
        pieces = [wire.partial_result(*at, PIECE) for _ in range(count)]
        told = count if self.obeys else 0
        return [*pieces, wire.push_result(*at, self.terminal or ended(told))]


@asynccontextmanager
async def program_on(server: WordyServer, **members: Any) -> AsyncGenerator[Agent, None]:
    """A program over one session of such a server."""
    settings = quick(sessions=1)
    async with (
        Orchestrator.connect("wordy", pool_settings=settings, connect=server.connect) as made,
        made.program("program", **members) as root,
    ):
        yield root


async def test_calls_at_once_keep_to_their_budget_where_the_server_knows_no_budgets() -> None:
    server = WordyServer(obeys=True, most=5000)
    async with program_on(server, budget=Budget(tokens=3000)) as root:
        with anyio.fail_after(SECONDS):
            streams = [root.chat(body("x"), max_tokens=tokens) for tokens in (500, 2000, 2000)]
            assert (await streams[0].result()).status == "completed"
            for stream in streams[1:]:
                with pytest.raises(BudgetExceeded):
                    await stream.result()
        assert sum(server.produced) == root.spent.tokens == 3000


async def test_a_call_alone_has_all_of_its_budget_where_the_server_knows_no_budgets() -> None:
    server = WordyServer(obeys=True, most=2500)
    async with program_on(server, budget=Budget(tokens=3000)) as root:
        with anyio.fail_after(SECONDS):
            assert (await root.chat(body("x")).result()).text == "w " * 2500
        assert root.spent.tokens == 2500


async def test_a_server_that_keeps_to_no_limit_is_stopped_and_what_it_sent_is_counted() -> None:
    server = WordyServer(obeys=False)
    async with program_on(server, budget=Budget(tokens=100)) as root:
        with anyio.fail_after(SECONDS):
            stream = root.chat(body("x"))
            with pytest.raises(BudgetExceeded) as caught:
                await stream.result()
        assert caught.value.partial is not None
        assert len(caught.value.partial.text.split()) == root.spent.tokens == 100 + MARGIN + 1
        with pytest.raises(BudgetExceeded):
            await root.chat(body("x")).result()
        assert server.produced == [1000]


async def test_a_server_that_counts_fewer_tokens_than_it_sends_is_not_believed() -> None:
    async with program_on(WordyServer(obeys=False, most=200)) as root:
        with anyio.fail_after(SECONDS):
            await root.chat(body("x")).result()
        assert root.spent.tokens == 200


@pytest.mark.parametrize(
    "document",
    [
        b'{"type":"response.completed","body":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xff\xfe",
        b"null",
        PIECE,
        b'{"type":"response.error","error":{}}',
        b'{"type":"response.unheard_of"}',
    ],
    ids=["deep", "no text", "null", "no end", "no error", "unknown"],
)
async def test_an_end_that_nobody_understands_is_an_error_of_its_call_alone(
    document: bytes,
) -> None:
    server = WordyServer(obeys=True, most=2, terminal=document)
    async with program_on(server) as root:
        with anyio.fail_after(SECONDS):
            stream = root.chat(body("x"))
            with pytest.raises(ProfileStreamError):
                await stream.result()
            assert stream.partial.text == "w w "
            assert stream.receipt is not None
            assert not stream.receipt.authoritative
            server.terminal = None
            assert await root.chat(body("x")).text() == "w w "
