"""A server of ours as a child process."""

import os
import signal

import anyio
import pytest

from nnrp_sched.cli.child import started_server
from nnrp_sched.errors import ServerEnded, StartError

pytestmark = pytest.mark.anyio


async def test_a_server_that_does_not_start_is_an_error_with_the_end_of_its_log() -> None:
    with pytest.raises(StartError, match="not-an-endpoint"), anyio.fail_after(30):
        async with started_server("serve", "--listen", "not-an-endpoint"):
            pass


async def test_a_server_is_gone_after_the_block() -> None:
    with anyio.fail_after(30):
        async with started_server("serve", "--listen", "nnrp://127.0.0.1:0") as server:
            endpoint = server.ready["endpoints"][0]
        async with started_server("serve", "--listen", endpoint) as again:
            assert again.ready["endpoints"] == [endpoint]


async def test_a_block_that_fails_because_its_server_ended_says_so_with_the_end_of_its_log() -> (
    None
):
    with anyio.fail_after(30), pytest.raises(ServerEnded, match=r"code -9; its log ends"):
        async with started_server("serve", "--listen", "nnrp://127.0.0.1:0") as server:
            os.kill(server.pid, signal.SIGKILL)
            raise ExceptionGroup("what comes of it", [ConnectionError()])


async def test_a_block_that_fails_by_itself_does_so_as_it_is() -> None:
    with anyio.fail_after(30), pytest.raises(ZeroDivisionError):
        async with started_server("serve", "--listen", "nnrp://127.0.0.1:0"):
            raise ZeroDivisionError
