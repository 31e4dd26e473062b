"""Options that several commands share."""

import click

from nnrp_sched.server import ServerLimits

max_in_flight_option = click.option(
    "--max-in-flight",
    type=click.IntRange(1, 65_535),
    default=ServerLimits().max_in_flight,
    help="Operations at once in one session.",
)


def limits_from(max_in_flight: int) -> ServerLimits:
    """The server's limits with what the command line can change."""
    return ServerLimits(max_in_flight=max_in_flight)
