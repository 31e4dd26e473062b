"""A server with a token, over each carrier: who has to say it, and what happens without."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from nnrp_sched.client import connect
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import PeerUnreachable
from nnrp_sched.server import serve
from nnrp_sched.transport import ClientSecurity, Endpoint
from tests.support.carriers import ENDPOINTS, Place, client_security, server_security
from tests.support.certificates import certificates
from tests.support.serving import SECONDS, body

pytestmark = pytest.mark.anyio
TOKEN = "a-secret"


@asynccontextmanager
async def guarded(kind: str, directory: Path, **security: object) -> AsyncGenerator[Endpoint]:
    """The address of a server that wants the token."""
    protection = msgspec.structs.replace(server_security(), token=TOKEN, **security)
    endpoint = Place(kind, directory).endpoint
    with anyio.fail_after(SECONDS):
        async with serve(ScriptedEngine(), [endpoint], security=protection) as server:
            yield server.endpoints[0]


async def chat(endpoint: Endpoint, security: ClientSecurity) -> str:
    """How a chat with a server ends."""
    async with connect(endpoint, security=security) as connection, connection.session() as session:
        return (await session.chat(body()).result()).status


def saying(token: str | None) -> ClientSecurity:
    """A client with a token."""
    return msgspec.structs.replace(client_security(), token=token)


@pytest.mark.parametrize("kind", ENDPOINTS)
async def test_the_token_lets_a_client_in(kind: str, tmp_path: Path) -> None:
    async with guarded(kind, tmp_path) as endpoint:
        assert await chat(endpoint, saying(TOKEN)) == "completed"


@pytest.mark.parametrize("kind", [kind for kind in ENDPOINTS if kind != "unix"])
@pytest.mark.parametrize(
    ("token", "answer"), [(None, "wants a token"), ("wrong", "token is not this server's")]
)
async def test_without_it_a_client_is_told_what_is_missing(
    kind: str, token: str | None, answer: str, tmp_path: Path
) -> None:
    async with guarded(kind, tmp_path) as endpoint:
        with pytest.raises(PeerUnreachable, match=answer) as raised:
            await chat(endpoint, saying(token))
        assert "is it an NNRP endpoint" not in str(raised.value)
        assert TOKEN not in str(raised.value)


async def test_a_unix_socket_knows_its_user_and_asks_for_no_token(tmp_path: Path) -> None:
    async with guarded("unix", tmp_path) as endpoint:
        assert await chat(endpoint, saying(None)) == "completed"


@pytest.mark.parametrize("kind", ["tls", "wss"])
async def test_a_client_certificate_stands_for_the_token(kind: str, tmp_path: Path) -> None:
    files = certificates()
    client = ClientSecurity(ca=files.authority, certificate=files.client, key=files.client_key)
    async with guarded(kind, tmp_path, client_ca=files.authority) as endpoint:
        assert await chat(endpoint, client) == "completed"


async def test_a_client_without_the_certificate_that_is_asked_for_is_told(tmp_path: Path) -> None:
    async with guarded("tls", tmp_path, client_ca=certificates().authority) as endpoint:
        with pytest.raises(PeerUnreachable, match=r"TLS: .*certificate required"):
            await chat(endpoint, saying(TOKEN))
