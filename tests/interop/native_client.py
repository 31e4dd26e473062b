"""The SDK's client, driven from asyncio."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from msgspec import Struct

from tests.interop.native_sdk import (
    KINDS,
    SDK,
    der,
    document_of,
    poll,
    random_session_id,
    submit_request,
)
from tests.support.certificates import certificates

SECONDS: Final = 30
LOST: Final = 3
"""Failed polls in a row of tests that are the SDK's forgetting; more are a lost connection."""


class Ended(Struct, frozen=True):
    """How an operation ended for the SDK."""

    events: list[bytes]
    """The bodies of its partial results."""
    kind: str
    """The terminal message's name."""
    document: Any = None
    metadata: Any = None


class NativeSession:
    """A session of the SDK's client."""

    def __init__(self, session: Any) -> None:
        self.native = session
        self.other: list[Any] = []
        """Events that belong to no operation's stream."""
        self.lost = 0
        """Polls that the SDK failed because it had already forgotten the operation they are of."""

    async def submit(self, operation: int, frame: int, envelope: object, trace: int = 0) -> None:
        """Submit one envelope."""
        request = submit_request(operation, frame, envelope, trace)
        await asyncio.to_thread(self.native.submit_operation, request)

    async def cancel(self, operation: int) -> None:
        """Send CANCEL."""
        request = SDK.ControlRequestMetadata(operation, 1, 1, SDK.RuntimeRole.CLIENT, 1, 0)
        await asyncio.to_thread(self.native.cancel_operation, request)

    async def abort(self, operation: int) -> None:
        """Send ABORT."""
        request = SDK.ControlRequestMetadata(operation, 1, 1, SDK.RuntimeRole.CLIENT, 2, 0)
        await asyncio.to_thread(self.native.abort_operation, request)

    async def next_terminal(self) -> tuple[int, Any]:
        """The frame and the document of the next RESULT_PUSH of any operation."""
        while _name(event := await self._next()) != "RESULT_PUSH":
            self.other.append(event)
        return int(event.header.frame_id), document_of(bytes(event.tail.body))

    async def trace(self, trace_id: int, span_id: int, operation: int | None = None) -> None:
        """Send TRACE_CONTEXT for the session, or for an operation that was submitted."""
        context = SDK.TraceContextMetadata(trace_id, span_id, 0, 1, 1, 0)
        if operation is None:
            await asyncio.to_thread(self.native.send_trace_context, context)
        else:
            await asyncio.to_thread(
                lambda: self.native.send_trace_context(context, operation_id=operation)
            )

    async def first_event(self, frame: int) -> bytes:
        """The body of the next partial result of a frame."""
        while True:
            event = await self._next()
            if event.header.frame_id == frame and _name(event) == "PARTIAL_RESULT":
                return bytes(event.tail.body)
            self.other.append(event)

    async def result(self, frame: int) -> Ended:
        """Everything of a frame until its terminal."""
        events: list[bytes] = []
        while True:
            event = await self._next()
            kind = _name(event)
            if event.header.frame_id != frame:
                self.other.append(event)
            elif kind == "PARTIAL_RESULT":
                events.append(bytes(event.tail.body))
            elif kind == "RESULT_PUSH":
                return Ended(events, kind, document_of(bytes(event.tail.body)), event.metadata)
            elif kind in ("RESULT_DROP", "RESULT_DROP_REASON"):
                return Ended(events, kind, None, event.metadata)
            else:
                self.other.append(event)

    async def close(self) -> None:
        """SESSION_CLOSE and its acknowledgement."""
        await asyncio.to_thread(self.native.close)

    async def _next(self) -> Any:
        with anyio.fail_after(SECONDS):
            while True:
                try:
                    event = await poll(self.native)
                except SDK.NativeInvalidStateError:
                    self.lost += 1
                    if self.lost > LOST:
                        raise
                    continue
                if event is not None and hasattr(event, "header"):
                    return event


def _name(event: Any) -> str:
    return str(event.header.message_type.name)


class NativeConnection:
    """A connection of the SDK's client."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def open(self, max_in_flight: int = 64) -> NativeSession:
        """Open a session under a random id."""
        options = SDK.NativeClientSessionOptions(
            requested_session_id=random_session_id(), max_in_flight_operations=max_in_flight
        )
        return NativeSession(await self._connection.open_session(options))


@asynccontextmanager
async def native_connection(kind: str, address: str) -> AsyncGenerator[NativeConnection]:
    """The SDK's client on a carrier, connected to an address of ours."""
    carrier = KINDS[kind]
    security = None
    if carrier.encrypted:
        security = SDK.NativeTransportClientSecurity("localhost", der(certificates().authority))
    route = SDK.NativeClientProviderRoute(address, security)
    options = SDK.NativeClientOptions(
        address if carrier.route is None else carrier.application,
        provider_routes={} if carrier.route is None else {carrier.route: route},
        transport_policy=carrier.policy,
    )
    manager = SDK.connect_native_client_connection(options)
    connection = await asyncio.to_thread(manager.__enter__)
    try:
        yield NativeConnection(connection)
    finally:
        with anyio.CancelScope(shield=True):
            await asyncio.to_thread(manager.__exit__, None, None, None)
