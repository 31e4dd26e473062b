"""`nnrp-sched capabilities`: what a server declares about itself."""

import json
from functools import partial
from typing import Any

import anyio
import click

from nnrp_sched.cli.security import Dial, connecting
from nnrp_sched.client import connect
from nnrp_sched.transport import ClientSecurity


@click.command("capabilities")
@connecting
@click.option("--json", "as_json", is_flag=True, help="Print it on one line.")
def command(endpoint: str, security: ClientSecurity, as_json: bool) -> None:
    """Print what a server declares: its models, its operations, its extensions."""
    document = anyio.run(_fetch, partial(connect, endpoint, security=security))
    click.echo(json.dumps(document, indent=None if as_json else 2))


async def _fetch(dial: Dial) -> dict[str, Any]:
    async with dial() as connection, connection.session() as session:
        return await session.capabilities()
