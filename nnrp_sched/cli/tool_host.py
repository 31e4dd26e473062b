"""`nnrp-sched tool-host`: tools of a Python module, for agents elsewhere."""

import sys
from collections.abc import Sequence
from functools import partial

import anyio
import click

from nnrp_sched.cli.hosted_tools import MAX_OUTPUT_BYTES, MAX_SECONDS, tool_host
from nnrp_sched.cli.options import max_in_flight_option
from nnrp_sched.cli.security import listening
from nnrp_sched.cli.serving import serve_until_stopped
from nnrp_sched.engine.absent import AbsentEngine
from nnrp_sched.server import ServerLimits
from nnrp_sched.transport import Endpoint, ServerSecurity


@click.command("tool-host")
@click.argument("tools", metavar="MODULE:TOOLS")
@listening
@max_in_flight_option
@click.option(
    "--max-calls",
    type=click.IntRange(1),
    default=ServerLimits().max_tool_calls,
    help="Calls at once in the whole host; further ones are refused.",
)
@click.option(
    "--max-output-bytes",
    type=click.IntRange(0),
    default=MAX_OUTPUT_BYTES,
    help="Output of one call that is sent; what comes after it is left out.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(0, 1e9, min_open=True),
    default=MAX_SECONDS,
    help="How long one call may run; then it is stopped.",
)
def command(
    tools: str,
    endpoints: list[Endpoint],
    security: ServerSecurity,
    max_in_flight: int,
    max_calls: int,
    max_output_bytes: int,
    max_seconds: float,
) -> None:
    """Run the tools of a Python module for agents that connect.

    TOOLS names, in MODULE, a tool, an async function, or several of them. Agents see what they
    need to know of them, call them over NNRP, and get their output as it comes; a call that nobody
    waits for any more is stopped, with all of its processes. Prints one JSON line when ready.
    SIGTERM lets running calls finish, a second one stops them.

    Whoever can connect can run these tools with your rights: on a host that others use too,
    listen on a unix socket or ask for a token.

    \b
    Examples:
      nnrp-sched tool-host my_tools:TOOLS --listen unix:///run/user/1000/tools.sock
      nnrp-sched tool-host my_tools:TOOLS --listen nnrps://0.0.0.0:7438 \\
          --token-file token.txt --tls-certificate host.pem --tls-key host-key.pem
    """
    host = tool_host(tools, output_bytes=max_output_bytes, seconds=max_seconds)
    _warn(endpoints, security)
    anyio.run(
        partial(
            serve_until_stopped,
            AbsentEngine(),
            endpoints,
            limits=ServerLimits(max_in_flight=max_in_flight, max_tool_calls=max_calls),
            security=security,
            tool_host=host,
            announcement={
                "http": None,
                "model": None,
                "vllm": None,
                "binding": None,
                "patched": [],
            },
            stdout=sys.stdout,
        )
    )


def _warn(endpoints: Sequence[Endpoint], security: ServerSecurity) -> None:
    open_to_all = [str(each) for each in endpoints if each.carrier != "unix"]
    if security.token is None and security.client_ca is None and open_to_all:
        click.echo(
            f"nnrp-sched: every user of this host can run these tools at {', '.join(open_to_all)}; "
            "unix:// or --token-file keeps others out",
            err=True,
        )
