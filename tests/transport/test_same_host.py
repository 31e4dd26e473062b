"""Which peers are certainly on this host."""

from pathlib import Path

import anyio
import pytest

from nnrp_sched.transport import Carrier, connect_carrier, listen, memory_pair, parse_endpoint
from nnrp_sched.transport.socket_carrier import is_loopback

pytestmark = pytest.mark.anyio
SECONDS = 20


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:0", "tcp://[::1]:0", "unix://{}/s"])
async def test_a_peer_on_loopback_or_a_unix_socket_is(text: str, tmp_path: Path) -> None:
    seen: list[bool] = []

    async def handler(carrier: Carrier) -> None:
        seen.append(carrier.same_host)
        await carrier.receive()
        # A connection that has ended is asked as well.
        seen.append(carrier.same_host)

    with anyio.fail_after(SECONDS):
        listener = await listen(parse_endpoint(text.format(tmp_path)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, handler)
            carrier = await connect_carrier(listener.endpoint)
            assert carrier.same_host
            await carrier.send(b"x")
            assert await carrier.receive() == b""
            await carrier.aclose()
            await listener.aclose()
    assert seen == [True, True]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:192.0.2.1", False),
        ("192.0.2.1", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
    ],
)
def test_loopback_is_told_by_the_address(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_a_memory_pair_is_as_it_was_made() -> None:
    assert all(carrier.same_host for carrier in memory_pair())
    assert not any(carrier.same_host for carrier in memory_pair(same_host=False))
