"""A server of ours as a child process, known to be ready and gone at the end."""

import json
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import IO, Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from nnrp_sched.errors import ServerEnded, StartError

_MAX_READY_BYTES = 65_536
_STOP_SECONDS = 20.0
_TAIL_BYTES = 3000
_ENDING_SECONDS = 3.0
"""A server whose engine died is gone within two; what its callers see of that comes first."""
_LAST_LINES = 3


class ServerProcess(Struct, frozen=True):
    """A server that has said it is ready."""

    pid: int
    ready: dict[str, Any]
    """Its readiness line."""


@asynccontextmanager
async def started_server(
    command: str, *arguments: str, seconds: float = 300.0
) -> AsyncGenerator[ServerProcess, None]:
    """Run `nnrp-sched COMMAND ARGUMENTS` for the time of the block.

    Raises `StartError` with the end of its log when it does not become ready in time, and
    `ServerEnded` when the block fails and the server has ended by itself. At the end it gets
    SIGTERM, and SIGKILL when that takes too long.
    """
    with tempfile.TemporaryFile() as log:
        process = await anyio.open_process(
            [sys.executable, "-m", "nnrp_sched", command, *arguments],
            stderr=log,
            start_new_session=True,  # Ctrl-C is ours to hand on, once.
        )
        try:
            server = ServerProcess(process.pid, await _read_ready(process, log, seconds))
            try:
                yield server
            except Exception as error:
                with anyio.move_on_after(_ENDING_SECONDS, shield=True):
                    await process.wait()
                if process.returncode is None:
                    raise
                said = "\n".join(_tail(log).splitlines()[-_LAST_LINES:])
                raise ServerEnded(
                    f"the server ended with code {process.returncode}; its log ends:\n{said}"
                ) from error
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process)


async def _read_ready(process: Process, log: IO[bytes], seconds: float) -> dict[str, Any]:
    assert process.stdout is not None
    line = b""
    try:
        with anyio.fail_after(seconds):
            stdout = BufferedByteReceiveStream(process.stdout)
            line = await stdout.receive_until(b"\n", _MAX_READY_BYTES)
        ready: dict[str, Any] = json.loads(line)
    except (anyio.IncompleteRead, TimeoutError, ValueError) as error:
        raise StartError(
            f"the server did not start ({error!r}); its log ends:\n{_tail(log)}"
        ) from error
    return ready


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read()[-_TAIL_BYTES:].decode(errors="replace")


async def _stop(process: Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(_STOP_SECONDS):
            await process.wait()
    if process.returncode is None:
        process.kill()
    await process.aclose()
