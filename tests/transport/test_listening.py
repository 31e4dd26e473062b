"""Listening and connecting: addresses taken, peers absent, sockets left behind, clean ends."""

import asyncio
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from nnrp_sched.errors import PeerUnreachable, StartError
from nnrp_sched.transport import (
    Carrier,
    Endpoint,
    ServerSecurity,
    connect_carrier,
    listen,
    parse_endpoint,
)

pytestmark = pytest.mark.anyio
SECONDS = 20
ANY_PORT = parse_endpoint("nnrp://127.0.0.1:0")


def unix_endpoint(directory: Path) -> Endpoint:
    """A socket in a directory."""
    return parse_endpoint(f"unix://{directory}/nnrp.sock")


def exists(endpoint: Endpoint) -> bool:
    """Whether anything is at a unix endpoint's path."""
    return os.path.lexists(endpoint.path)


def write(endpoint: Endpoint, text: str) -> None:
    """Put an ordinary file at a unix endpoint's path."""
    Path(endpoint.path).write_text(text)


def read(endpoint: Endpoint) -> str:
    """The text of the ordinary file there."""
    return Path(endpoint.path).read_text()


async def echo(carrier: Carrier) -> None:
    """Send back what comes."""
    while data := await carrier.receive():
        await carrier.send(data)


async def answers(endpoint: Endpoint) -> bool:
    """Whether an echo server answers at an endpoint."""
    with anyio.fail_after(SECONDS):
        carrier = await connect_carrier(endpoint)
        await carrier.send(b"hello")
        answered = await carrier.receive() == b"hello"
        await carrier.aclose()
        return answered


async def test_the_endpoint_names_the_port_the_system_chose() -> None:
    listener = await listen(ANY_PORT)
    assert listener.endpoint.scheme == "nnrp"
    assert listener.endpoint.port > 0
    await listener.aclose()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_connections_are_served_until_the_listener_closes(host: str) -> None:
    with anyio.fail_after(SECONDS):
        listener = await listen(parse_endpoint(f"tcp://{host}:0"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            assert await answers(listener.endpoint)
            assert await answers(listener.endpoint)
            await listener.aclose()
        with pytest.raises(PeerUnreachable):
            await connect_carrier(listener.endpoint)


async def test_connections_made_before_serving_wait_for_it() -> None:
    with anyio.fail_after(SECONDS):
        listener = await listen(ANY_PORT)
        carrier = await connect_carrier(listener.endpoint)
        await carrier.send(b"early")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            assert await carrier.receive() == b"early"
            await carrier.aclose()
            await listener.aclose()


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
async def test_closing_the_listener_leaves_running_handlers_alone(
    scheme: str, tmp_path: Path
) -> None:
    endpoint = ANY_PORT if scheme == "tcp" else unix_endpoint(tmp_path)
    with anyio.fail_after(SECONDS):
        listener = await listen(endpoint)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            carrier = await connect_carrier(listener.endpoint)
            await carrier.send(b"one")
            assert await carrier.receive() == b"one"
            await listener.aclose()
            await carrier.send(b"two")
            assert await carrier.receive() == b"two"
            await carrier.aclose()


async def test_a_carrier_is_closed_when_its_handler_returns() -> None:
    async def leave(_carrier: Carrier) -> None:
        return

    with anyio.fail_after(SECONDS):
        listener = await listen(ANY_PORT)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, leave)
            carrier = await connect_carrier(listener.endpoint)
            assert await carrier.receive() == b""
            await carrier.aclose()
            await listener.aclose()


async def test_an_error_of_a_handler_leaves_serve_and_closes_its_carrier() -> None:
    async def fail(_carrier: Carrier) -> None:
        raise LookupError("in the handler")

    with anyio.fail_after(SECONDS):
        listener = await listen(ANY_PORT)
        carrier = await connect_carrier(listener.endpoint)
        with pytest.raises(BaseExceptionGroup) as raised:
            await listener.serve(fail)
        assert raised.group_contains(LookupError)
        assert await carrier.receive() == b""
        await carrier.aclose()
        await listener.aclose()


async def test_cancelling_serve_closes_the_carriers_of_its_handlers() -> None:
    with anyio.fail_after(SECONDS):
        listener = await listen(ANY_PORT)
        carrier = await connect_carrier(listener.endpoint)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            await carrier.send(b"x")
            assert await carrier.receive() == b"x"
            tasks.cancel_scope.cancel()
        assert await carrier.receive() == b""
        await carrier.aclose()
        await listener.aclose()


async def test_a_listener_closes_twice_and_before_it_served() -> None:
    listener = await listen(ANY_PORT)
    await listener.aclose()
    await listener.aclose()


@pytest.mark.parametrize("turns", range(4))
async def test_a_listener_that_is_closed_while_it_begins_to_serve_just_returns(turns: int) -> None:
    listener = await listen(parse_endpoint("nnrp://localhost:0"))
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            await listener.aclose()
    with pytest.raises(PeerUnreachable):
        await connect_carrier(listener.endpoint)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_while_the_listener_closes_is_ended(
    turns: int, cancelled: bool
) -> None:
    async def hang_up(_carrier: Carrier) -> None:
        pass

    loop = asyncio.get_running_loop()
    listener = await listen(ANY_PORT)
    with anyio.fail_after(SECONDS), socket.socket() as client:
        client.setblocking(False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, hang_up)
            await anyio.wait_all_tasks_blocked()
            await loop.sock_connect(client, ("127.0.0.1", listener.endpoint.port))
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            if cancelled:
                tasks.cancel_scope.cancel()
            else:
                await listener.aclose()
        with suppress(ConnectionResetError):
            assert await loop.sock_recv(client, 1) == b""


async def test_a_port_is_free_again_as_soon_as_the_server_is_gone() -> None:
    with anyio.fail_after(SECONDS):
        first = await listen(ANY_PORT)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.serve, echo)
            assert await answers(first.endpoint)
            await first.aclose()
        second = await listen(first.endpoint)
        await second.aclose()


async def test_an_address_in_use_is_named() -> None:
    listener = await listen(ANY_PORT)
    with pytest.raises(StartError, match=str(listener.endpoint)) as raised:
        await listen(listener.endpoint)
    assert "in use" in str(raised.value)
    assert raised.value.exit_code == 3
    await listener.aclose()


@pytest.mark.parametrize("text", ["tcp://192.0.2.1:7437", "tcp://no-such-host.invalid:7437"])
async def test_an_address_that_is_not_ours_is_named(text: str) -> None:
    with pytest.raises(StartError, match=text):
        await listen(parse_endpoint(text), ServerSecurity(token="secret"))


async def test_a_name_is_listened_at_once_on_each_address_this_machine_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def entry(host: str) -> tuple[object, ...]:
        return socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)

    async def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [entry("192.0.2.1"), entry("127.0.0.1"), entry("127.0.0.1"), entry("127.0.0.2")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    listener = await listen(parse_endpoint("nnrp://some-name:0"), ServerSecurity(token="secret"))
    monkeypatch.undo()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        for host in ("127.0.0.1", "127.0.0.2"):
            assert await answers(Endpoint("nnrp", host, listener.endpoint.port))
        await listener.aclose()


async def test_an_absent_peer_is_named(tmp_path: Path) -> None:
    listener = await listen(ANY_PORT)
    await listener.aclose()
    for endpoint in (listener.endpoint, unix_endpoint(tmp_path)):
        with anyio.fail_after(SECONDS), pytest.raises(PeerUnreachable) as raised:
            await connect_carrier(endpoint)
        assert str(endpoint) in str(raised.value)
        assert raised.value.exit_code == 5


async def test_an_unknown_host_is_named() -> None:
    with anyio.fail_after(SECONDS), pytest.raises(PeerUnreachable, match=r"no-such-host\.invalid"):
        await connect_carrier(parse_endpoint("tcp://no-such-host.invalid:7437"))


# --- unix sockets -------------------------------------------------------------------------------


async def test_a_unix_socket_is_its_owner_s_and_goes_with_the_listener(tmp_path: Path) -> None:
    endpoint = unix_endpoint(tmp_path)
    listener = await listen(endpoint)
    status = os.stat(endpoint.path)
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600
    await listener.aclose()
    assert not exists(endpoint)


async def test_the_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    endpoint = unix_endpoint(tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(endpoint.path)
    with anyio.fail_after(SECONDS):
        listener = await listen(endpoint)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            assert await answers(endpoint)
            await listener.aclose()


async def test_the_socket_of_a_live_server_is_left_alone(tmp_path: Path) -> None:
    endpoint = unix_endpoint(tmp_path)
    with anyio.fail_after(SECONDS):
        listener = await listen(endpoint)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            with pytest.raises(StartError, match="another server answers there"):
                await listen(endpoint)
            assert await answers(endpoint)
            await listener.aclose()


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    endpoint = unix_endpoint(tmp_path)
    write(endpoint, "precious")
    with pytest.raises(StartError, match=endpoint.path):
        await listen(endpoint)
    assert read(endpoint) == "precious"


async def test_a_successor_s_socket_is_not_removed(tmp_path: Path) -> None:
    endpoint = unix_endpoint(tmp_path)
    first = await listen(endpoint)
    os.unlink(endpoint.path)
    second = await listen(endpoint)
    await first.aclose()
    assert exists(endpoint)
    await second.aclose()
    assert not exists(endpoint)


async def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    endpoint = unix_endpoint(tmp_path / "nowhere")
    with pytest.raises(StartError, match="nowhere"):
        await listen(endpoint)
