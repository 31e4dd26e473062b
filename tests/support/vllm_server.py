"""vLLM's own API server as a process of its own, and what its processes tell of themselves."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process

from nnrp_sched_patches.embedded_model import ENVIRONMENT, engine_arguments, prepare
from tests.support.vllm_http import get

# Loaded by every Python process that has its folder on the path: on SIGUSR1 the process writes down
# what it knows of us. Nothing in it imports vLLM or this project.
WITNESS = """
import json, os, signal, sys

def witness(signum, frame):
    modules = [name for name in sys.modules if name.startswith("nnrp_sched")]
    slots = {}
    for module, owner in [
        ("vllm.v1.engine.async_llm", "AsyncLLM"),
        ("vllm.v1.engine.core", "EngineCore"),
        ("vllm.v1.core.sched.scheduler", "Scheduler"),
        ("vllm.v1.engine.output_processor", "OutputProcessor"),
    ]:
        if module in sys.modules:
            members = vars(getattr(sys.modules[module], owner))
            slots[owner] = {name: type(value).__module__ for name, value in members.items()}
    found = {"pid": os.getpid(), "modules": modules, "wrapt": "wrapt" in sys.modules}
    install = sys.modules.get("nnrp_sched_patches.install")
    if install is not None:
        import msgspec
        found["layer"] = msgspec.to_builtins(install.status())
    path = os.path.join(os.environ["WITNESS_FOLDER"], f"{os.getpid()}.json")
    with open(path + ".part", "w") as file:
        json.dump({**found, "slots": slots}, file)
    os.rename(path + ".part", path)

signal.signal(signal.SIGUSR1, witness)
"""


_SERVES = "Application startup complete"


class ApiServer:
    """A running `python -m vllm.entrypoints.openai.api_server` on the embedded model."""

    def __init__(self, folder: Path, pid: int, address: str) -> None:
        self._folder = folder
        self.pid = pid
        self.address = address
        self.log = ""
        """What its processes wrote to stdout and stderr so far."""
        self.started = anyio.Event()
        """Set when it serves, or has ended."""

    async def read(self, process: Process) -> None:
        """Keep the log until the last process that writes to it is gone."""
        assert process.stdout is not None
        async for chunk in process.stdout:
            self.log += chunk.decode(errors="replace")
            if _SERVES in self.log:
                self.started.set()
        self.started.set()

    async def witnesses(self) -> list[dict[str, Any]]:
        """What each of its Python processes knows of us now."""
        asked = [each for each in processes_below(self.pid) if _has_witness(each)]
        for each in asked:
            os.kill(each, signal.SIGUSR1)
        return [await _report(anyio.Path(self._folder / f"{each}.json")) for each in asked]


@asynccontextmanager
async def api_server(
    folder: Path, *arguments: str, site: str = "", environment: Mapping[str, str] | None = None
) -> AsyncGenerator[ApiServer]:
    """A server with nothing of ours in its environment but `environment`.

    Every Python process of it runs the witness and then `site` when it starts.
    """
    (folder / "sitecustomize.py").write_text(WITNESS + site)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    clean = {key: value for key, value in os.environ.items() if "NNRP" not in key}
    paths = {"PYTHONPATH": str(folder), "WITNESS_FOLDER": str(folder)}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    model = ("--model", str(prepare()), "--host", "127.0.0.1", "--port", str(port))
    process = await anyio.open_process(
        [*command, *model, *engine_arguments(arguments), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**clean, **ENVIRONMENT, **paths, **(environment or {})},
    )
    server = ApiServer(folder, process.pid, f"127.0.0.1:{port}")
    reading = asyncio.create_task(server.read(process))
    try:
        await server.started.wait()
        while not await healthy(server.address):
            # Between the message and the first accepted connection there is a moment.
            assert process.returncode is None, server.log[-3000:]
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
            await process.wait()
            await reading
            await process.aclose()


async def healthy(address: str) -> bool:
    """Whether the server answers."""
    try:
        status, _ = await get(address, "/health")
    except OSError:
        return False
    return status == 200


def processes_below(pid: int) -> list[int]:
    """A process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in processes_below(int(child)))]


def _has_witness(pid: int) -> bool:
    """Whether a process has the witness: SIGUSR1 would end one that has not."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (signal.SIGUSR1 - 1) & 1)


async def _report(path: anyio.Path) -> dict[str, Any]:
    """What a process wrote, once it did."""
    while not await path.exists():
        pass
    found: dict[str, Any] = json.loads(await path.read_text())
    return found
