"""vLLM's own HTTP app beside other listeners in one event loop.

vLLM's `serve_http` takes the process's signal handlers and keeps them (hooks-verified.md, C10), so
its app runs on a uvicorn server of our own that touches no signal.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from importlib import import_module
from typing import Any

import anyio

from nnrp_sched.errors import EndpointError, StartError

_BACKLOG = 2048


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; raises EndpointError saying what is wrong."""
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise EndpointError(
            f"{text!r} is no HTTP address; write host:port, like 127.0.0.1:8000, or off"
        )
    return host, int(port)


def bind_socket(address: str) -> socket.socket:
    """A socket bound to `address`: done before the slow start, so that a taken port shows early.

    Raises EndpointError for a text that is no address and StartError when it cannot be had.
    """
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartError(f"the HTTP address {address} cannot be used: {error}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(target)
    except OSError as error:
        bound.close()
        raise StartError(
            f"the HTTP address {address} cannot be had: {error.strerror}; choose another with"
            " --http, port 0 for any free one, or turn HTTP off"
        ) from error
    return bound


def address_of(bound: socket.socket) -> str:
    """`host:port` of a bound socket, with the port it really got."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.asynccontextmanager
async def serve_app(
    app: Any, state: Any, bound: socket.socket, arguments: Any
) -> AsyncGenerator[None, None]:
    """Serve vLLM's app on `bound` while the context is open; `arguments` are vLLM's own.

    `app` may have middleware of ours around it; `state` is that of vLLM's app itself.
    Entered once requests are answered. Raises StartError when the app does not start.
    """
    server = _server(app, bound, arguments)
    settled = _quieten(server)
    # vLLM's error handlers stop the server they find here when the engine is dead.
    state.server = server
    # A plain task: a task group would wrap every error of the caller's block in a group.
    task = asyncio.create_task(server.serve([bound]), name="vLLM HTTP server")
    try:
        await settled.wait()
        if not server.started:
            raise StartError("vLLM's HTTP app did not start; its log above says why")
        yield
    finally:
        server.should_exit = True
        with anyio.CancelScope(shield=True):
            await task


def _quieten(server: Any) -> anyio.Event:
    """Keep a uvicorn server off the process's signals; the event tells that its start is over."""
    settled = anyio.Event()
    startup = server.startup

    async def startup_and_tell(*arguments: Any, **keywords: Any) -> None:
        try:
            await startup(*arguments, **keywords)
        finally:
            settled.set()

    server.startup = startup_and_tell
    server.capture_signals = contextlib.nullcontext
    # What uvicorn had before it captured signals.
    server.install_signal_handlers = lambda: None
    return settled


def _server(app: Any, bound: socket.socket, arguments: Any) -> Any:
    # uvicorn comes with vLLM; without vLLM nobody needs this module.
    uvicorn = import_module("uvicorn")
    host, port = bound.getsockname()[:2]
    options = {
        name: getattr(arguments, name)
        for name in (
            "ssl_keyfile",
            "ssl_certfile",
            "ssl_ca_certs",
            "ssl_cert_reqs",
            "ssl_ciphers",
            "h11_max_incomplete_event_size",
        )
        if getattr(arguments, name, None) is not None
    }
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        backlog=_BACKLOG,
        **options,
    )
    return uvicorn.Server(config)
