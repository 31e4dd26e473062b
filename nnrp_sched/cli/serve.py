"""`nnrp-sched serve`: the server on the scripted engine, without vLLM."""

import sys
from functools import partial

import anyio
import click

from nnrp_sched.cli.hosted_tools import tool_host, tools_option
from nnrp_sched.cli.observers import MetricsAddress, metrics_option
from nnrp_sched.cli.options import limits_from, max_in_flight_option
from nnrp_sched.cli.security import listening
from nnrp_sched.cli.serving import serve_until_stopped
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.transport import Endpoint, ServerSecurity


@click.command("serve")
@click.option(
    "--engine",
    type=click.Choice(["scripted"]),
    default="scripted",
    help="The engine to serve. `scripted` is deterministic and for protocol work; it is no model.",
)
@listening
@max_in_flight_option
@metrics_option
@tools_option
@click.option(
    "--slots", type=click.IntRange(1), help="Chats that run at once; the others wait. Default: all."
)
def command(
    engine: str,
    endpoints: list[Endpoint],
    security: ServerSecurity,
    max_in_flight: int,
    metrics: MetricsAddress | None,
    tools: str | None,
    slots: int | None,
) -> None:
    """Serve the scripted engine: the same server without vLLM.

    Prints one JSON line when ready.

    \b
    Examples:
      nnrp-sched serve --engine scripted --listen nnrp://127.0.0.1:0
      nnrp-sched serve --listen wss://0.0.0.0:7443/nnrp --token-file token.txt \\
          --tls-certificate server.pem --tls-key server-key.pem
    """
    host = None if tools is None else tool_host(tools)
    scripted = ScriptedEngine(slots=slots)
    anyio.run(
        partial(
            serve_until_stopped,
            scripted,
            endpoints,
            limits=limits_from(max_in_flight),
            security=security,
            metrics=metrics,
            tool_host=host,
            announcement={
                "http": None,
                "model": scripted.description.models[0],
                "vllm": None,
                "binding": None,
                "patched": [],
            },
            stdout=sys.stdout,
        )
    )
