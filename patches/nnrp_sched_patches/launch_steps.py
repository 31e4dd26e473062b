"""The steps of a launch, each over vLLM's own objects."""

import asyncio
import contextlib
import gc
import io
import logging
import multiprocessing
from collections.abc import AsyncGenerator, Generator, Sequence
from importlib import import_module
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from nnrp_sched.engine.port import EngineDescription
from nnrp_sched.errors import NnrpSchedError, StartError, UnsupportedVllm, VllmArgumentError
from nnrp_sched_patches.bindings import Binding
from nnrp_sched_patches.control import Control
from nnrp_sched_patches.engine_errors import EngineErrors
from nnrp_sched_patches.frontend import ledger_of
from nnrp_sched_patches.hello import HelloReceipt
from nnrp_sched_patches.ledger_feed import followed
from nnrp_sched_patches.scheduler_fit import check_scheduler_class
from nnrp_sched_patches.serving_seams import ServingObjects
from nnrp_sched_patches.version import InstalledVllm
from nnrp_sched_patches.vllm_engine import VllmEngine

_LOGGER = logging.getLogger(__name__)

_CHILDREN_WAIT_S = 20.0

_FROZEN_BY_PYTHON = 2000
"""Objects that nobody else has hidden from the garbage collector: Python 3.12 begins with 375."""

_OURS = {
    "--host": "--http HOST:PORT",
    "--port": "--http HOST:PORT",
    "--uds": "--http HOST:PORT, or --listen unix:///PATH for NNRP",
}
"""vLLM flags that would be ignored, since the HTTP socket is bound here, with what to use."""


def parse_arguments(vllm: ServingObjects, model: str, arguments: list[str]) -> Any:
    """vLLM's own parse of its command line, for a model.

    Raises VllmArgumentError with the parser's words, and for a flag without effect here.
    """
    said = io.StringIO()
    parser = vllm["make_arg_parser"](vllm["FlexibleArgumentParser"]())
    try:
        with contextlib.redirect_stderr(said):
            parsed = parser.parse_args(["--model", model, *arguments])
            vllm["validate_parsed_serve_args"](parsed)
    except SystemExit as stop:
        if not stop.code:
            raise
        lines = said.getvalue().strip().splitlines() or ["no reason given"]
        # argparse puts the program's name and "error: " before its words.
        reason = lines[-1].rpartition(": error: ")[2]
        raise VllmArgumentError(f"vLLM does not take these arguments: {reason}") from stop
    for flag, ours in _OURS.items():
        name = flag.removeprefix("--")
        if getattr(parsed, name, None) != parser.get_default(name):
            raise VllmArgumentError(f"vLLM's {flag} is not taken here: use {ours}, before the `--`")
    if parsed.model != model or getattr(parsed, "model_tag", None) is not None:
        raise VllmArgumentError("the model is named with nnrp-sched's own --model, before the `--`")
    if (getattr(parsed, "api_server_count", None) or 1) > 1:
        raise VllmArgumentError("one API server process serves NNRP: leave --api-server-count out")
    # As vLLM's own server does before it builds the engine.
    configure = getattr(import_module("vllm.logger"), "configure_logging_from_args", None)
    if configure is not None:
        configure(parsed)
    if parsed.tool_parser_plugin:
        vllm["ToolParserManager"].import_tool_parser(parsed.tool_parser_plugin)
    if parsed.reasoning_parser_plugin:
        vllm["ReasoningParserManager"].import_reasoning_parser(parsed.reasoning_parser_plugin)
    return parsed


def refuse_unpatchable(parsed: Any) -> None:
    """Raise UnsupportedVllm for a configuration of which the patches would not see all."""
    engines = parsed.data_parallel_size or 1
    if engines > 1:
        # Whatever we ask goes to all of them, and vLLM returns the first answer (hooks.md 2.1).
        raise UnsupportedVllm(
            f"--data-parallel-size {engines}: of several engines only one would be heard, so that"
            " queue and receipts were wrong; start one nnrp-sched for each engine, or run without"
            " --patch-vllm"
        )
    if isinstance(parsed.scheduler_cls, str):
        check_scheduler_class(parsed.scheduler_cls)


def error_log(errors: EngineErrors, arguments: list[str]) -> dict[str, str]:
    """The variables that make vLLM's processes log their errors where `errors` finds them."""
    return errors.variables(import_module("vllm.logger").DEFAULT_LOGGING_CONFIG, tuple(arguments))


async def chat_engine(
    vllm: ServingObjects,
    llm: Any,
    parsed: Any,
    tasks: Any,
    *,
    app: Any,
    control: Control | None,
    described: EngineDescription,
) -> VllmEngine:
    """The engine port over vLLM's serving objects, those of its HTTP app where there is one.

    `described` lacks what only vLLM's state tells. Raises StartError for a model that does not
    generate text.
    """
    state = import_module("starlette.datastructures").State() if app is None else app.state
    await vllm["init_app_state"](llm, state, parsed, tasks)
    chat = getattr(state, "openai_serving_chat", None)
    if chat is None:
        raise StartError(
            f"{parsed.model} does not serve chats: vLLM runs it for {', '.join(tasks)}"
        )
    models = state.openai_serving_models
    names = [base.name for base in models.base_model_paths]
    names += list(getattr(models, "lora_requests", {}))
    complete = msgspec.structs.replace(
        described,
        models=tuple(names),
        max_model_len=getattr(getattr(llm, "model_config", None), "max_model_len", None),
        tool_calls=bool(parsed.enable_auto_tool_choice and parsed.tool_call_parser),
    )
    return VllmEngine(llm, chat, vllm["ChatCompletionRequest"], complete, control)


def description(
    installed: InstalledVllm, binding: Binding | None, receipts: Sequence[HelloReceipt]
) -> EngineDescription:
    """What the hellos tell of the engine."""
    engine = next((receipt for receipt in receipts if receipt.process == "engine"), None)
    return EngineDescription(
        family="vllm",
        models=(),
        tool_calls=False,
        version=installed.version,
        binding=binding.family.name if binding else None,
        priority_policy=engine.policy if engine else None,
        live_queue=bool(receipts) and all(receipt.patched for receipt in receipts),
    )


@contextlib.asynccontextmanager
async def control_over(
    llm: Any, receipts: Sequence[HelloReceipt]
) -> AsyncGenerator[Control | None, None]:
    """The control of a patched vLLM, its ledger kept up to date while the context is open.

    None where a process did not say that it is patched.
    """
    if not receipts or not all(receipt.patched for receipt in receipts):
        yield None
        return
    ledger = ledger_of(llm.output_processor)
    async with followed(llm, ledger):
        yield Control(llm, ledger)


@contextlib.contextmanager
def start_failures(errors: EngineErrors, model: str) -> Generator[None]:
    """Turn whatever stops vLLM's start into a StartError that names model and reason."""
    try:
        yield
    except NnrpSchedError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        logged = errors.last()
        if logged is not None and logged not in reason:
            reason = f"{logged} ({reason})"
        raise StartError(f"vLLM did not start with {model}: {reason}") from error


@contextlib.contextmanager
def root_log_level_kept() -> Generator[None]:
    """Put the root logger's level back: what vLLM's HTTP app imports raises it to ERROR.

    Warnings of everything else in this process would be lost with it.
    """
    root = logging.getLogger()
    level = root.level
    try:
        yield
    finally:
        root.setLevel(level)


@contextlib.contextmanager
def heap_frozen() -> Generator[None]:
    """Hide what the start has made from the garbage collector, and show it again at the end.

    vLLM's HTTP app does the first by itself when it begins to serve, and never the second, so that
    the engine would never be collected. A heap that was hidden before stays so.
    """
    theirs = gc.get_freeze_count() > _FROZEN_BY_PYTHON
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not theirs:
            gc.unfreeze()


@contextlib.asynccontextmanager
async def children_gone() -> AsyncGenerator[None, None]:
    """On leaving, wait for the processes that were started inside to end.

    vLLM returns from its shutdown while they still hold memory (hooks-verified.md 7).
    """
    before = set(multiprocessing.active_children())
    try:
        yield
    finally:
        ours = [child for child in multiprocessing.active_children() if child not in before]
        with anyio.CancelScope(shield=True):
            for child in ours:
                await anyio.to_thread.run_sync(child.join, _CHILDREN_WAIT_S)
        for child in ours:
            if child.is_alive():
                _LOGGER.warning("vLLM's process %s (pid %s) is still there", child.name, child.pid)


@contextlib.asynccontextmanager
async def watched(llm: Any, failed: anyio.Event) -> AsyncGenerator[None, None]:
    """Set `failed` when the engine process dies: vLLM's output task ends then."""

    async def watch() -> None:
        await asyncio.wait({llm.output_handler})
        failed.set()

    # A plain task: a task group would wrap every error of the caller's block in a group.
    task = asyncio.create_task(watch(), name="vLLM engine watch")
    try:
        yield
    finally:
        task.cancel()
