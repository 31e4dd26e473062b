"""A small chat server on the SDK: what it answers is in the words of the last message."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from nnrp_sched.transport import background_tasks
from tests.interop.native_sdk import KINDS, SDK, der, document_of, key_der, poll, result_packet
from tests.support.certificates import certificates

native: Final[Any] = import_module("nnrp.server.native")

ACCEPT_MS: Final = 250


class NativeChatServer:
    """Serves each session in a task of its own and keeps what it saw.

    `hold` sends one delta and waits for the cancel, `drop` is dropped for backpressure, `refuse`
    gets a `response.error`, anything else comes back in two deltas and a completion.
    """

    def __init__(self, server: Any) -> None:
        self._server = server
        self.messages: list[tuple[str, int, Any]] = []
        """Every message that was no submit: its name, frame id and metadata."""
        self.sessions = 0
        self.errors: list[Exception] = []
        """What the SDK raised: a lost connection, or a message that crossed a terminal."""

    def names(self, name: str) -> list[tuple[str, int, Any]]:
        """The messages of one name."""
        return [message for message in self.messages if message[0] == name]

    async def run(self, tasks: TaskGroup) -> None:
        """Accept sessions until cancelled."""
        while True:
            try:
                options = SDK.NativeServerAcceptOptions(timeout_ms=ACCEPT_MS)
                session = await self._server.accept(options)
            except SDK.NativeWouldBlockError:
                continue
            self.sessions += 1
            tasks.start_soon(self._serve, session)

    async def _serve(self, session: Any) -> None:
        held: dict[int, Any] = {}
        while True:
            try:
                event = await poll(session)
            except SDK.NativeInvalidStateError as error:
                self.errors.append(error)
                return
            if event is None:
                continue
            submit = event.as_submit()
            if submit is not None:
                await self._answer(submit, held)
                continue
            runtime = event.as_runtime()
            if runtime is None:
                continue  # The SDK's own news of an operation's life.
            name = runtime.header.message_type.name
            self.messages.append((name, int(runtime.header.frame_id), runtime.metadata))
            if name in ("CANCEL", "ABORT", "FRAME_CANCEL"):
                await self._drop(held.pop(int(runtime.header.frame_id)), "PEER_CANCELLED")
            elif name == "SESSION_CLOSE":
                await asyncio.to_thread(session.close)
                return

    async def _answer(self, operation: Any, held: dict[int, Any]) -> None:
        envelope = document_of(bytes(operation.submit.tail.body))
        text = envelope["body"]["messages"][-1]["content"]
        if text == "drop":
            await self._drop(operation, "BACKPRESSURE")
        elif text == "refuse":
            error = {"type": "server_error", "code": "backend_error", "message": "refused"}
            await operation.send_result(
                *result_packet({"type": "response.error", "error": error}, 500)
            )
        elif text == "hold":
            await self._delta(operation, 1, text)
            held[int(operation.frame_id)] = operation
        else:
            half = len(text) // 2
            for number, piece in enumerate((text[:half], text[half:]), 1):
                await self._delta(operation, number, piece)
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            completed = {"type": "response.completed", "body": {"choices": [choice]}}
            await operation.send_result(*result_packet(completed))

    async def _delta(self, operation: Any, number: int, text: str) -> None:
        event = {"type": "response.output_text.delta", "index": 0, "delta": text}
        body = json.dumps(event).encode()
        metadata = SDK.PartialResultMetadata(
            operation.operation_id, number, 0, number, len(body), 0
        )
        await operation.send_partial_result(metadata, body)

    async def _drop(self, operation: Any, reason: str) -> None:
        metadata = SDK.ResultDropReasonMetadata(
            *(operation.operation_id, 2, SDK.ResultDropReasonCode[reason]),
            *(SDK.RuntimeRole.SERVER, 0, 0),
        )
        await operation.send_result_drop(metadata)


@asynccontextmanager
async def native_server(kind: str, address: str) -> AsyncGenerator[NativeChatServer]:
    """A chat server of the SDK on a carrier, at an address that is free."""
    carrier, files = KINDS[kind], certificates()
    security = None
    if carrier.encrypted:
        security = SDK.NativeTransportServerSecurity(der(files.server), key_der(files.server_key))
    route = SDK.NativeServerProviderRoute(address, security)
    options = SDK.NativeServerBootstrapOptions(
        address if carrier.route is None else carrier.application,
        provider_routes={} if carrier.route is None else {carrier.route: route},
        transport_policy=carrier.policy,
        session_defaults=SDK.NativeServerSessionOptions(
            max_in_flight_operations=256, granted_operation_credit=256
        ),
    )
    # What it does within one slice of `accept`, handshake, hello and session, it drops unfinished.
    native.__dict__["_ACCEPT_POLL_SLICE_MS"] = ACCEPT_MS
    manager = SDK.listen_native_server(options)
    server = NativeChatServer(await asyncio.to_thread(manager.__enter__))
    try:
        async with background_tasks() as tasks:
            tasks.start_soon(server.run, tasks)
            yield server
    finally:
        with anyio.CancelScope(shield=True), suppress(SDK.NativeInvalidHandleError):
            await asyncio.to_thread(manager.__exit__, None, None, None)
