"""`nnrp-sched capabilities`: what a server declares about itself."""

import json
from typing import Any

import anyio
import click

from nnrp_sched.cli.serving import DEFAULT_LISTEN
from nnrp_sched.client import connect


@click.command("capabilities")
@click.option("--endpoint", default=DEFAULT_LISTEN, help="The server's address.")
@click.option("--json", "as_json", is_flag=True, help="Print it on one line.")
def command(endpoint: str, as_json: bool) -> None:
    """Print what a server declares: its models, its operations, its extensions."""
    document = anyio.run(_fetch, endpoint)
    click.echo(json.dumps(document, indent=None if as_json else 2))


async def _fetch(endpoint: str) -> dict[str, Any]:
    async with connect(endpoint) as connection, connection.session() as session:
        return await session.capabilities()
