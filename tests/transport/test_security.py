"""What endpoints need before they are opened, and who is let in and who is trusted."""

from pathlib import Path

import anyio
import pytest

from nnrp_sched.errors import PeerUnreachable, SecurityError, StartError
from nnrp_sched.transport import (
    Carrier,
    ClientSecurity,
    ServerSecurity,
    background_tasks,
    check_endpoint,
    connect_carrier,
    listen,
    parse_endpoint,
)
from tests.support.carriers import ENDPOINTS, SECONDS, packet, server_security
from tests.support.certificates import certificates

pytestmark = pytest.mark.anyio
ENCRYPTED = ("tls", "wss", "quic")


def with_client_ca(token: str | None = None) -> ServerSecurity:
    """A server that asks for client certificates."""
    files = certificates()
    return ServerSecurity(
        certificate=files.server, key=files.server_key, client_ca=files.authority, token=token
    )


EXPOSED = (
    "tcp://0.0.0.0:0",
    "nnrp://[::]:0",
    "ws://0.0.0.0:0",
    "nnrps://0.0.0.0:0",
    "quic://[::]:0",
)


@pytest.mark.parametrize("text", EXPOSED)
async def test_an_endpoint_that_would_let_in_everybody_on_the_network_is_refused(text: str) -> None:
    endpoint = parse_endpoint(text)
    for refuse in (listen(endpoint, server_security()), _check(text, server_security())):
        with pytest.raises(SecurityError, match="--token-file") as raised:
            await refuse
        assert raised.value.exit_code == 2
        assert str(endpoint) in str(raised.value)


async def _check(text: str, security: ServerSecurity) -> None:
    check_endpoint(parse_endpoint(text), security)


@pytest.mark.parametrize("text", EXPOSED)
def test_a_token_lets_it_be_opened(text: str) -> None:
    files = certificates()
    security = ServerSecurity(certificate=files.server, key=files.server_key, token="secret")
    check_endpoint(parse_endpoint(text), security)


@pytest.mark.parametrize("text", ["nnrps://0.0.0.0:0", "wss://0.0.0.0:0"])
def test_client_certificates_let_an_encrypted_endpoint_be_opened(text: str) -> None:
    check_endpoint(parse_endpoint(text), with_client_ca())


@pytest.mark.parametrize("text", ["tcp://0.0.0.0:0", "ws://0.0.0.0:0"])
def test_client_certificates_do_nothing_for_one_that_is_not_encrypted(text: str) -> None:
    with pytest.raises(SecurityError, match="would let everybody in"):
        check_endpoint(parse_endpoint(text), with_client_ca())


def test_an_unknown_host_is_an_error_of_the_start() -> None:
    with pytest.raises(StartError, match=r"no-such-host\.invalid"):
        check_endpoint(parse_endpoint("tcp://no-such-host.invalid:1"), ServerSecurity())


async def test_client_certificates_over_quic_are_refused_on_both_ends() -> None:
    with pytest.raises(SecurityError, match="do not work over QUIC"):
        await listen(parse_endpoint("quic://127.0.0.1:0"), with_client_ca())
    files = certificates()
    security = ClientSecurity(certificate=files.client, key=files.client_key)
    with pytest.raises(SecurityError, match="do not work over QUIC"):
        await connect_carrier(parse_endpoint("quic://127.0.0.1:1"), security)


@pytest.mark.parametrize("kind", ENCRYPTED)
async def test_an_encrypted_endpoint_needs_a_certificate(kind: str) -> None:
    with pytest.raises(SecurityError, match="--tls-certificate"):
        await listen(parse_endpoint(ENDPOINTS[kind]))


@pytest.mark.parametrize("kind", ENCRYPTED)
async def test_files_that_cannot_be_used_are_named(kind: str, tmp_path: Path) -> None:
    files = certificates()
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    endpoint = parse_endpoint(ENDPOINTS[kind])
    bad = [
        ServerSecurity(certificate=tmp_path / "absent.pem"),
        ServerSecurity(certificate=nothing),
        ServerSecurity(certificate=files.server, key=files.client_key),
    ]
    for security in bad:
        with pytest.raises(SecurityError, match=str(security.certificate)):
            await listen(endpoint, security)
    for ca in (nothing, tmp_path / "absent.pem"):
        with pytest.raises(SecurityError, match=str(ca)):
            await connect_carrier(endpoint, ClientSecurity(ca=ca))


@pytest.mark.parametrize("token", ["", "two words", "naïve", "line\nbreak", "x" * 4097])
def test_a_token_is_one_word_that_fits_into_a_packet(token: str) -> None:
    with pytest.raises(SecurityError, match="token"):
        _ = ServerSecurity(token=token).token_bytes
    with pytest.raises(SecurityError, match="token"):
        _ = ClientSecurity(token=token).token_bytes


# --- who is trusted, who is let in ----------------------------------------------------------------


async def dialled(
    kind: str, server: ServerSecurity, client: ClientSecurity, host: str = "127.0.0.1"
) -> tuple[bytes, bool]:
    """What a client gets back for a packet, and whether its carrier counts as authenticated."""
    known: list[bool] = []

    async def echo(carrier: Carrier) -> None:
        known.append(carrier.authenticated)
        while data := await carrier.receive():
            await carrier.send(data)

    with anyio.fail_after(SECONDS):
        listener = await listen(parse_endpoint(ENDPOINTS[kind].replace("127.0.0.1", host)), server)
        async with background_tasks() as tasks:
            tasks.start_soon(listener.serve, echo)
            carrier = await connect_carrier(listener.endpoint, client)
            carrier.write(packet(b"hello"))
            answer = await carrier.receive()
            await carrier.aclose()
            await listener.aclose()
            return answer, known == [True]


@pytest.mark.parametrize("kind", ENCRYPTED)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_server_s_certificate_is_verified_against_the_authority_and_the_host(
    kind: str, host: str
) -> None:
    client = ClientSecurity(ca=certificates().authority)
    answer, known = await dialled(kind, server_security(), client, host)
    assert answer == packet(b"hello")
    assert not known


@pytest.mark.parametrize("kind", ENCRYPTED)
@pytest.mark.parametrize("trusted", ["another authority", "the system's authorities"])
async def test_a_certificate_of_an_unknown_authority_is_not_trusted(
    kind: str, trusted: str
) -> None:
    files = certificates()
    client = ClientSecurity(ca=files.other_authority if trusted.startswith("another") else None)
    with pytest.raises(PeerUnreachable, match="certificate is not trusted"):
        await dialled(kind, server_security(), client)


@pytest.mark.parametrize("kind", ENCRYPTED)
async def test_a_certificate_for_another_host_is_not_trusted(kind: str) -> None:
    client = ClientSecurity(ca=certificates().authority, server_name="other.example.org")
    with pytest.raises(PeerUnreachable, match="certificate is not trusted"):
        await dialled(kind, server_security(), client)


@pytest.mark.parametrize("kind", ["tls", "wss"])
async def test_a_client_certificate_is_verified_and_lets_its_client_in(kind: str) -> None:
    files = certificates()
    client = ClientSecurity(ca=files.authority, certificate=files.client, key=files.client_key)
    answer, known = await dialled(kind, with_client_ca(), client)
    assert answer == packet(b"hello")
    assert known


@pytest.mark.parametrize("who", ["nobody", "a stranger"])
async def test_a_client_without_a_certificate_of_the_authority_gets_nowhere(who: str) -> None:
    files = certificates()
    client = ClientSecurity(ca=files.authority)
    if who == "a stranger":
        client = ClientSecurity(
            ca=files.authority, certificate=files.stranger, key=files.stranger_key
        )
    # In TLS 1.3 the client is through with its handshake before the server has looked.
    assert await dialled("tls", with_client_ca(), client) == (b"", False)
    with pytest.raises(PeerUnreachable, match="TLS"):
        await dialled("wss", with_client_ca(), client)


async def test_a_user_that_is_not_known_is_turned_away_from_a_unix_socket(tmp_path: Path) -> None:
    served: list[Carrier] = []

    async def handler(carrier: Carrier) -> None:
        served.append(carrier)

    endpoint = parse_endpoint(f"unix://{tmp_path}/a.sock")
    with anyio.fail_after(SECONDS):
        # Whoever runs this test is not among those.
        listener = await listen(endpoint, ServerSecurity(unix_users=frozenset({987_654})))
        async with background_tasks() as tasks:
            tasks.start_soon(listener.serve, handler)
            carrier = await connect_carrier(endpoint)
            assert await carrier.receive() == b""
            await carrier.aclose()
            await listener.aclose()
    assert served == []
