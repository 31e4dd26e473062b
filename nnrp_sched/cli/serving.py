"""What `run` and `serve` share: listen, announce, and go down on a signal."""

import contextlib
import json
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TextIO

import anyio
from anyio.abc import TaskStatus

from nnrp_sched.cli.observers import MetricsAddress, watching
from nnrp_sched.engine.port import Engine
from nnrp_sched.engine.tool_port import ToolHost
from nnrp_sched.errors import EngineLost, StartError
from nnrp_sched.observe.observers import Observer
from nnrp_sched.server import Server, ServerLimits, serve
from nnrp_sched.transport import Endpoint, ServerSecurity, background_tasks

EngineFailed = Callable[[], Awaitable[str]]
"""Waits until the engine is gone and tells why."""


class _Stop:
    """What the signals and the engine ask of the server."""

    def __init__(self) -> None:
        self.drain = anyio.Event()
        self.abort = anyio.Event()
        self.lost: str | None = None

    async def on_signals(self, *, task_status: TaskStatus[None]) -> None:
        """The first SIGTERM or SIGINT drains, the second aborts; started once it hears them."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                if self.drain.is_set():
                    self.abort.set()
                self.drain.set()

    async def on_engine(self, engine_failed: EngineFailed) -> None:
        """Without an engine nothing can be drained."""
        self.lost = await engine_failed()
        self.drain.set()
        self.abort.set()


async def serve_until_stopped(
    engine: Engine,
    endpoints: Sequence[Endpoint],
    *,
    limits: ServerLimits,
    announcement: dict[str, Any],
    stdout: TextIO,
    engine_failed: EngineFailed | None = None,
    observe_http: Callable[[Observer], None] | None = None,
    security: ServerSecurity,
    metrics: MetricsAddress | None = None,
    tool_host: ToolHost | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; the first one drains, a second one aborts.

    Writes the readiness line, one JSON object, to `stdout`. Raises `StartError` when an endpoint
    cannot be opened or that line cannot be written, `SecurityError` when an endpoint must not be
    opened and `EngineLost` when the engine ends first. Each operation is observed, and through
    `observe_http` those beside NNRP too; `metrics` is where /metrics is served, `tool_host`
    has the tools of this server.
    """
    stop = _Stop()
    async with contextlib.AsyncExitStack() as stack:
        watch = await stack.enter_async_context(
            watching(metrics, in_engine_registry=observe_http is not None)
        )
        if observe_http is not None:
            observe_http(watch.observers)
        tasks = await stack.enter_async_context(background_tasks())
        server = await stack.enter_async_context(
            serve(engine, endpoints, limits, [watch.observers], security, tool_host)
        )
        await tasks.start(stop.on_signals)
        if engine_failed is not None:
            tasks.start_soon(stop.on_engine, engine_failed)
        ready = {
            "ready": True,
            "endpoints": [str(endpoint) for endpoint in server.endpoints],
            **announcement,
        }
        if tool_host is not None:
            ready["tools"] = [tool.name for tool in tool_host.tools]
        if watch.metrics is not None:
            ready["metrics"] = watch.metrics
        try:
            print(json.dumps(ready), file=stdout, flush=True)
        except OSError as error:
            raise StartError(f"cannot say on stdout that the server is ready: {error}") from error
        await stop.drain.wait()
        await _go_down(server, stop)
    if stop.lost is not None:
        raise EngineLost(f"the engine is gone: {stop.lost}")


async def _go_down(server: Server, stop: _Stop) -> None:
    async with anyio.create_task_group() as tasks:

        async def abort() -> None:
            await stop.abort.wait()
            await server.drain(0)

        tasks.start_soon(abort)
        await server.drain()
        tasks.cancel_scope.cancel()
