"""Options that several commands share."""

import click

from nnrp_sched.cli.serving import DEFAULT_LISTEN
from nnrp_sched.server import ServerLimits

listen_option = click.option(
    "--listen",
    multiple=True,
    default=(DEFAULT_LISTEN,),
    help="Where to listen: nnrp://HOST:PORT or unix:///PATH; may be given several times. "
    "Port 0 takes a free one.",
)
max_in_flight_option = click.option(
    "--max-in-flight",
    type=click.IntRange(1, 65_535),
    default=ServerLimits().max_in_flight,
    help="Operations at once in one session.",
)


def limits_from(max_in_flight: int) -> ServerLimits:
    """The server's limits with what the command line can change."""
    return ServerLimits(max_in_flight=max_in_flight)
