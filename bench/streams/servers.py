"""One process that serves the same chunks in five ways."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Literal

import anyio
import msgspec
import uvicorn
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from bench.streams.chunks import LENGTH, LOOPBACK, Addresses, chunks
from nnrp_sched.engine.opaque import OpaqueQueue
from nnrp_sched.engine.port import AbortReceipt, ChatBody, ChatCall, EngineDescription
from nnrp_sched.server import serve
from nnrp_sched.transport import Carrier, Outbox, background_tasks, listen
from nnrp_sched.wire import Reply, ServerConnection, SessionOpenReceived, SubmitReceived


class ChunkEngine(OpaqueQueue):
    """An engine that serves `chunks`; the body says how many and how far apart."""

    description = EngineDescription(family="bench", models=("bench",), tool_calls=False)

    async def complete(self, call: ChatCall) -> ChatBody:
        """Not measured here."""
        raise AssertionError(f"{call.request_id} does not stream")

    def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """Serve the chunks the body asks for."""
        return chunks(call.body["count"], call.body["gap"])

    async def abort(self, request_id: str) -> AbortReceipt:
        """Nothing is ever aborted here."""
        raise AssertionError(f"{request_id} was aborted")


async def serve_raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Length-prefixed JSON: one request, its chunks, the end of the stream."""
    request = msgspec.json.decode(await reader.readline())
    async for each in chunks(request["count"], request["gap"]):
        data = msgspec.json.encode(each)
        writer.write(LENGTH.pack(len(data)) + data)
        await writer.drain()
    writer.close()


def encode_plain(value: ChatBody) -> bytes:
    """JSON by the standard library."""
    return json.dumps(value).encode()


def event_app(encode: Callable[[ChatBody], bytes]) -> Callable[..., Awaitable[None]]:
    """Server-sent events by starlette's StreamingResponse, as vLLM serves them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        count, gap = scope["query_string"].decode().split("&")

        async def events() -> AsyncGenerator[bytes, None]:
            async for each in chunks(int(count), float(gap)):
                yield b"data: " + encode(each) + b"\n\n"
            yield b"data: [DONE]\n\n"

        await StreamingResponse(events(), media_type="text/event-stream")(scope, receive, send)

    return app


async def serve_wire(carrier: Carrier) -> None:
    """NNRP without operations, profile and mapper: chunks straight into packets."""
    wire = ServerConnection()
    outbox = Outbox(carrier, limit=8 << 20)

    async def run(submit: SubmitReceived) -> None:
        request = msgspec.json.decode(submit.document)["body"]
        where = (submit.session_id, submit.frame_id)
        async for each in chunks(request["count"], request["gap"]):
            outbox.put(wire.partial_result(*where, msgspec.json.encode(each)))
            if outbox.full:
                await outbox.wait_below(outbox.limit)
        outbox.put(wire.push_result(*where, None))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.run)
        while data := await carrier.receive():
            for event in wire.receive(data):
                if isinstance(event, Reply):
                    outbox.put(event.data)
                elif isinstance(event, SessionOpenReceived):
                    outbox.put(
                        wire.accept_session(event, 1, max_in_flight=256, operation_credit=256)
                    )
                elif isinstance(event, SubmitReceived):
                    tasks.start_soon(run, event)
        outbox.close()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def http_server(
    encode: Callable[[ChatBody], bytes], http: Literal["h11", "httptools"]
) -> AsyncGenerator[int, None]:
    """A uvicorn with the event application; its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(event_app(encode), http=http, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    yield listening.getsockname()[1]
    server.should_exit = True
    await task


def run_servers(pipe: Pipe) -> None:
    """The server process: say the addresses, serve until told to stop."""

    async def main() -> None:
        listener = await listen(LOOPBACK)
        async with (
            serve(ChunkEngine(), [LOOPBACK]) as server,
            background_tasks() as tasks,
            http_server(encode_plain, "h11") as plain,
            http_server(msgspec.json.encode, "httptools") as fast,
            await asyncio.start_server(serve_raw, "127.0.0.1", 0) as raw,
        ):
            tasks.start_soon(listener.serve, serve_wire)
            pipe.send(
                Addresses(
                    wire=str(listener.endpoint),
                    nnrp=str(server.endpoints[0]),
                    raw=raw.sockets[0].getsockname()[1],
                    sse=plain,
                    sse_fast=fast,
                )
            )
            await anyio.to_thread.run_sync(pipe.recv)

    asyncio.run(main())
