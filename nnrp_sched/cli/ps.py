"""`nnrp-sched ps`: what runs and waits in a server's engine."""

import json
import sys
from functools import partial
from typing import Any

import anyio
import click

from nnrp_sched.cli.security import Dial, connecting
from nnrp_sched.cli.table import table
from nnrp_sched.client import connect
from nnrp_sched.profile.scheduling import QueueSnapshot
from nnrp_sched.transport import ClientSecurity

COLUMNS = (
    "id",
    "program",
    "agent",
    "source",
    "state",
    "queue_delay_ms",
    "position",
    "estimate_ms",
    "tokens",
)
"""Members of a row, the same in both forms."""

_CLEAR = "\x1b[2J\x1b[H"


@click.command("ps")
@connecting
@click.option("--watch", is_flag=True, help="Print it again whenever it has changed.")
@click.option(
    "--per-second",
    type=click.FloatRange(0.1, 50),
    default=2.0,
    help="With --watch: how often at most.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a snapshot.")
def command(
    endpoint: str, security: ClientSecurity, watch: bool, per_second: float, as_json: bool
) -> None:
    """Show every live request of a server, those of HTTP clients too.

    A row tells the state, the time spent waiting to run, the place among those that wait (0 is
    next), the estimated further wait and the tokens produced so far. From the server's own host one
    sees everything, from elsewhere only what the same connection submitted.

    \b
    Example:
      nnrp-sched ps --watch
    """
    dial = partial(connect, endpoint, security=security)
    anyio.run(partial(_show, dial, watch=watch, per_second=per_second, as_json=as_json))


async def _show(dial: Dial, *, watch: bool, per_second: float, as_json: bool) -> None:
    async with dial() as connection, connection.session() as session:
        if not watch:
            _print(await session.queue(), as_json=as_json, clear=False)
            return
        async for snapshot in session.watch_queue(per_second=per_second):
            _print(snapshot, as_json=as_json, clear=sys.stdout.isatty())


def _print(snapshot: QueueSnapshot, *, as_json: bool, clear: bool) -> None:
    rows = [[getattr(row, name) for name in COLUMNS] for row in snapshot.operations]
    if as_json:
        operations: list[dict[str, Any]] = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        click.echo(json.dumps({"operations": operations}))
        return
    origin = "" if snapshot.authoritative else ", as far as known outside the scheduler"
    heading = f"{snapshot.running} running, {snapshot.waiting} waiting{origin}"
    click.echo(f"{_CLEAR if clear else ''}{heading}\n{table(COLUMNS, rows)}")
