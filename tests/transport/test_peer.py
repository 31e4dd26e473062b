"""Who is at the other end: the same name for all connections of one peer."""

import hashlib
import ssl
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from nnrp_sched.transport import (
    Carrier,
    ClientSecurity,
    ListenLimits,
    connect_carrier,
    listen,
    memory_pair,
)
from tests.support.carriers import ENDPOINTS, SECONDS, Place, client_security, server_security
from tests.support.certificates import certificates

pytestmark = pytest.mark.anyio


async def peers(
    kind: str, directory: Path, *, client: ClientSecurity, client_ca: Path | None = None
) -> list[str]:
    """Whom a server sees behind two connections of a client."""
    seen: list[str] = []

    async def handler(carrier: Carrier) -> None:
        seen.append(carrier.peer)
        await carrier.receive()

    security = msgspec.structs.replace(server_security(), client_ca=client_ca)
    with anyio.fail_after(SECONDS):
        listener = await listen(Place(kind, directory).endpoint, security, ListenLimits())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, handler)
            for number in (1, 2):
                carrier = await connect_carrier(listener.endpoint, client)
                while len(seen) < number:
                    await anyio.lowlevel.checkpoint()
                await carrier.aclose()
            await listener.aclose()
    return seen


@pytest.mark.parametrize("kind", ENDPOINTS)
async def test_a_peer_is_its_host_where_nothing_better_is_known(kind: str, tmp_path: Path) -> None:
    host = "" if kind == "unix" else "127.0.0.1"
    assert await peers(kind, tmp_path, client=client_security()) == [host, host]


@pytest.mark.parametrize("kind", ["tls", "wss"])
async def test_a_peer_with_a_certificate_is_that(kind: str, tmp_path: Path) -> None:
    files = certificates()
    client = ClientSecurity(ca=files.authority, certificate=files.client, key=files.client_key)
    der = ssl.PEM_cert_to_DER_cert(
        files.client.read_text().split("-----END")[0] + "-----END CERTIFICATE-----\n"
    )
    fingerprint = f"sha256:{hashlib.sha256(der).hexdigest()}"
    seen = await peers(kind, tmp_path, client=client, client_ca=files.authority)
    assert seen == [fingerprint, fingerprint]


def test_the_other_end_of_a_memory_pair_is_this_process() -> None:
    assert [carrier.peer for carrier in memory_pair(same_host=False)] == ["memory", "memory"]
