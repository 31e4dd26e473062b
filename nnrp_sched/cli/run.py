"""`nnrp-sched run`: vLLM's API server and the NNRP listener in one process."""

import os
import signal
import sys
from functools import partial
from types import FrameType
from typing import NoReturn, TextIO

import anyio
import click
import msgspec

from nnrp_sched.cli.hosted_tools import tool_host, tools_option
from nnrp_sched.cli.observers import MetricsAddress, metrics_option
from nnrp_sched.cli.options import limits_from, max_in_flight_option
from nnrp_sched.cli.scheduling_policy import PRIORITY_POLICY, names_policy
from nnrp_sched.cli.security import listening
from nnrp_sched.cli.serving import serve_until_stopped
from nnrp_sched.engine.tool_port import ToolHost
from nnrp_sched.errors import StartError, UnsupportedVllm
from nnrp_sched.server import ServerLimits
from nnrp_sched.transport import Endpoint, ServerSecurity

_OFF = "off"


@click.command("run", context_settings={"ignore_unknown_options": False})
@click.option(
    "--patch-vllm",
    is_flag=True,
    help="Activate the patch layer in this process and in vLLM's engine process. Without it "
    "nothing of vLLM is touched.",
)
@click.option("--model", help="As vLLM's --model. Default: the embedded SmolLM2, on the CPU.")
@listening
@click.option(
    "--http",
    default="127.0.0.1:8000",
    help="Where vLLM's own HTTP server listens: HOST:PORT, or `off`.",
)
@max_in_flight_option
@metrics_option
@tools_option
@click.argument("vllm_arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    patch_vllm: bool,
    model: str | None,
    endpoints: list[Endpoint],
    security: ServerSecurity,
    http: str,
    max_in_flight: int,
    metrics: MetricsAddress | None,
    tools: str | None,
    vllm_arguments: tuple[str, ...],
) -> None:
    """Start vLLM with an NNRP listener beside its HTTP server.

    Everything after `--` goes to vLLM unchanged; the model and the address of the HTTP server are
    given by the flags below. With --patch-vllm, vLLM's queue is ordered by priority unless you give
    a --scheduling-policy of your own. Prints one JSON line on stdout when ready; all logs, vLLM's
    included, go to stderr. SIGTERM drains, a second one aborts.

    \b
    Examples:
      nnrp-sched run --patch-vllm
      nnrp-sched run --patch-vllm --model Qwen/Qwen2.5-7B-Instruct -- --max-model-len 8192
    """
    if vllm_arguments and not vllm_arguments[0].startswith("-"):
        raise click.UsageError(
            f"Unexpected argument {vllm_arguments[0]!r}: a model is named with --model, and vLLM's"
            " own flags come after `--`."
        )
    if patch_vllm and not names_policy(vllm_arguments):
        click.echo(
            f"nnrp-sched: vLLM starts with {' '.join(PRIORITY_POLICY)}, so that priorities count; "
            "give one yourself after -- to have another",
            err=True,
        )
        vllm_arguments = (*PRIORITY_POLICY, *vllm_arguments)
    host = None if tools is None else tool_host(tools)
    stdout = _keep_stdout_for_ourselves()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _terminate)
    anyio.run(
        partial(
            _run,
            patch=patch_vllm,
            model=model,
            endpoints=endpoints,
            security=security,
            metrics=metrics,
            host=host,
            http=None if http == _OFF else http,
            limits=limits_from(max_in_flight),
            vllm_arguments=vllm_arguments,
            stdout=stdout,
        )
    )


def _keep_stdout_for_ourselves() -> TextIO:
    """A private stdout; everything else in this process and its children writes to stderr.

    vLLM logs to stdout, from processes of its own too, and would mix with the readiness line.
    """
    sys.stdout.flush()
    private = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return private


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    """A signal while vLLM still starts, which blocks the event loop: unwind and clean up.

    SIGINT's usual handler under asyncio would wait for the loop, thus for the end of the start.
    """
    raise SystemExit(128 + number)


async def _run(
    *,
    patch: bool,
    model: str | None,
    endpoints: list[Endpoint],
    security: ServerSecurity,
    metrics: MetricsAddress | None,
    host: ToolHost | None,
    http: str | None,
    limits: ServerLimits,
    vllm_arguments: tuple[str, ...],
    stdout: TextIO,
) -> None:
    try:
        from nnrp_sched_patches.launch import LaunchOptions, launch
    except ImportError as error:
        raise StartError(f"the patch layer is not installed: {error}") from error

    options = LaunchOptions(model=model, http=http, patch=patch, vllm_arguments=vllm_arguments)
    async with launch(options) as serving:
        unpatched = [receipt for receipt in serving.receipts if not receipt.patched]
        if unpatched:
            raise UnsupportedVllm(
                "asked to patch, but "
                + "; ".join(
                    f"the {each.process} process is not: {each.problem}" for each in unpatched
                )
            )
        description = serving.engine.description

        async def engine_failed() -> str:
            await serving.engine_failed.wait()
            return serving.failure

        await serve_until_stopped(
            serving.engine,
            endpoints,
            limits=limits,
            security=security,
            metrics=metrics,
            tool_host=host,
            announcement={
                "http": serving.http,
                "model": description.models[0],
                "vllm": description.version,
                "binding": description.binding,
                "patched": msgspec.to_builtins(serving.receipts),
            },
            stdout=stdout,
            engine_failed=engine_failed,
            observe_http=serving.observe_http,
        )
