"""What `serve` and `run` share."""

import io
import signal
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import pytest

from nnrp_sched.cli.serving import serve_until_stopped
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.errors import StartError
from nnrp_sched.server import ServerLimits
from nnrp_sched.transport import ServerSecurity, parse_endpoint

pytestmark = pytest.mark.anyio
SECONDS = 20


@contextmanager
def deaf_to_sigterm() -> Generator[list[int]]:
    """Notes a SIGTERM that would have killed the process."""
    deadly: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: deadly.append(number))
    try:
        yield deadly
    finally:
        signal.signal(signal.SIGTERM, before)


class _TerminatedWhenReady(io.StringIO):
    """A standard output whose reader stops the server as soon as it says anything."""

    def flush(self) -> None:
        signal.raise_signal(signal.SIGTERM)


async def test_a_server_that_says_it_is_ready_already_heeds_a_sigterm() -> None:
    with deaf_to_sigterm() as deadly, anyio.fail_after(SECONDS):
        await serve_until_stopped(
            ScriptedEngine(),
            [parse_endpoint("nnrp://127.0.0.1:0")],
            limits=ServerLimits(),
            security=ServerSecurity(),
            announcement={},
            stdout=_TerminatedWhenReady(),
        )
    assert deadly == []


async def test_a_server_whose_readiness_nobody_can_read_does_not_start() -> None:
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(28, "No space left on device")

    with anyio.fail_after(SECONDS), pytest.raises(StartError, match="No space left"):
        await serve_until_stopped(
            ScriptedEngine(),
            [parse_endpoint("nnrp://127.0.0.1:0")],
            limits=ServerLimits(),
            announcement={},
            stdout=Full(),
            security=ServerSecurity(),
        )
