"""A server of the bare profile: no control requests, no negotiation, no words on credit."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import msgspec

from nnrp_sched.client import Connection
from nnrp_sched.client.connect import over_carrier
from nnrp_sched.profile import (
    Cancelled,
    OutputTextDelta,
    encode_event,
    error_document,
    profile_error,
)
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
from nnrp_sched_orchestrator.pool import Pool
from tests.support.server_stage import quick


class PlainServer:
    """Begins to answer every chat and ends none by itself."""

    def __init__(self, carrier: Carrier, *, answers_cancel: bool) -> None:
        self._carrier = carrier
        self._answers_cancel = answers_cancel
        self._wire = ServerConnection(Limits(), offers=frozenset())
        self._sessions = 0
        self.cancelled: list[str] = []
        """The diagnostics of cancels."""

    async def serve(self) -> None:
        """Answer until the client leaves."""
        while data := await self._carrier.receive():
            for event in self._wire.receive(data):
                answer = self._answer(event)
                if answer and not self._wire.closed:
                    await self._carrier.send(answer)

    def _answer(self, event: ServerEvent) -> bytes:
        match event:
            case Reply():
                return event.data
            case SessionOpenReceived():
                self._sessions += 1
                return self._wire.accept_session(
                    event, self._sessions, max_in_flight=8, operation_credit=8
                )
            case SubmitReceived():
                return self._on_submit(event)
            case CancelReceived():
                self.cancelled.append(event.diagnostic)
                cancelled = encode_event(Cancelled(reason="client_cancel"))
                if self._answers_cancel:
                    return self._wire.push_result(event.session_id, event.frame_id, cancelled)
            case SessionCloseReceived():
                return self._wire.acknowledge_session_close(event.session_id)
            case _:
                pass
        return b""

    def _on_submit(self, submit: SubmitReceived) -> bytes:
        at = (submit.session_id, submit.frame_id)
        asked = msgspec.json.decode(submit.document or b"{}")
        if asked["operation"] != "chat.completions.create":
            refusal = error_document(profile_error("unsupported_operation", "no such operation"))
            return self._wire.push_result(*at, encode_event(refusal))
        return self._wire.partial_result(*at, encode_event(OutputTextDelta(delta="so", index=0)))


@asynccontextmanager
async def plain_pool(
    *, answers_cancel: bool = True
) -> AsyncGenerator[tuple[Pool, PlainServer], None]:
    """A pool whose one endpoint is such a server."""
    ours, theirs = memory_pair()
    server = PlainServer(theirs, answers_cancel=answers_cancel)

    @asynccontextmanager
    async def connect(_name: str) -> AsyncGenerator[Connection, None]:
        async with over_carrier(ours) as connection:
            yield connection

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        async with Pool.open("plain", quick(sessions=2), connect=connect) as pool:
            yield pool, server
        tasks.cancel_scope.cancel()
