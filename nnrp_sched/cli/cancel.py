"""`nnrp-sched cancel`: end operations in a server's engine, with receipts."""

import json
from functools import partial

import anyio
import click

from nnrp_sched.cli.security import Dial, connecting
from nnrp_sched.cli.table import table
from nnrp_sched.client import connect
from nnrp_sched.profile.scheduling import AbortReceipt
from nnrp_sched.transport import ClientSecurity

COLUMNS = ("id", "state", "accepted", "authoritative", "tokens", "latency_ms")
"""Members of a receipt, the same in both forms."""


@click.command("cancel")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--agent", help="End every operation of this agent.")
@click.option("--program", help="End every operation of this program.")
@connecting
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    ids: tuple[str, ...],
    agent: str | None,
    program: str | None,
    endpoint: str,
    security: ClientSecurity,
    as_json: bool,
) -> int:
    """End operations by the IDs that `nnrp-sched ps` shows, or all of an agent or a program.

    Prints a receipt for each: where it stood, whether this ended it, whether the scheduler itself
    said so, and the tokens produced until then. In a long step the engine takes requests out at its
    end: they are `pending`, and asking for their IDs again tells what became of them. Exits with 1
    when nothing was ended.

    \b
    Example:
      nnrp-sched cancel --program nightly-report
    """
    if sum((bool(ids), agent is not None, program is not None)) != 1:
        raise click.UsageError("give IDs, --agent or --program, and only one of them")
    dial = partial(connect, endpoint, security=security)
    receipts = anyio.run(partial(_cancel, dial, ids=ids, agent=agent, program=program))
    rows = [
        (
            each.request_id,
            each.state,
            each.accepted,
            each.authoritative,
            each.tokens,
            each.latency_ms,
        )
        for each in receipts
    ]
    if as_json:
        click.echo(json.dumps({"receipts": [dict(zip(COLUMNS, row, strict=True)) for row in rows]}))
    else:
        click.echo(table(COLUMNS, rows))
    return 0 if any(each.accepted for each in receipts) else 1


async def _cancel(
    dial: Dial, *, ids: tuple[str, ...], agent: str | None, program: str | None
) -> list[AbortReceipt]:
    async with dial() as connection, connection.session() as session:
        return await session.abort_operations(ids or None, agent=agent, program=program)
