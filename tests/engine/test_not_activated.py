"""vLLM's own API server, started without the variable: no trace of us in any of its processes."""

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched_patches.embedded_model import engine_arguments, prepare
from tests.support.vllm_http import get, post_chat

pytestmark = pytest.mark.anyio

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
    path = os.path.join(os.environ["WITNESS_FOLDER"], f"{os.getpid()}.json")
    with open(path + ".part", "w") as file:
        json.dump({"modules": modules, "wrapt": "wrapt" in sys.modules, "slots": slots}, file)
    os.rename(path + ".part", path)

signal.signal(signal.SIGUSR1, witness)
"""


@asynccontextmanager
async def api_server(folder: Path) -> AsyncGenerator[tuple[int, str]]:
    """`python -m vllm.entrypoints.openai.api_server` on the embedded model; pid and address."""
    (folder / "sitecustomize.py").write_text(WITNESS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if "NNRP" not in key}
    environment |= {
        "PYTHONPATH": str(folder),
        "WITNESS_FOLDER": str(folder),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    model = ("--model", str(prepare()), "--host", "127.0.0.1", "--port", str(port))
    log = folder / "log"
    with log.open("wb") as file:
        process = await anyio.open_process(
            [*command, *model, *engine_arguments(())], stdout=file, stderr=file, env=environment
        )
    address = f"127.0.0.1:{port}"
    try:
        while not await healthy(address):
            assert process.returncode is None, log.read_text()[-3000:]
        yield process.pid, address
    finally:
        with anyio.CancelScope(shield=True):
            process.terminate()
            await process.wait()
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


async def test_no_process_of_vllm_shows_a_trace_of_us(tmp_path: Path) -> None:
    with anyio.fail_after(300):
        async with api_server(tmp_path) as (pid, address):
            question = {"role": "user", "content": "What is the capital of France?"}
            body = {"model": "SmolLM2-135M-Instruct", "messages": [question], "temperature": 0}
            status, answer = await post_chat(address, body)
            assert status == 200
            assert "Paris" in answer["choices"][0]["message"]["content"]
            witnesses = [each for each in processes_below(pid) if installed_witness(each)]
            for each in witnesses:
                os.kill(each, signal.SIGUSR1)
            reports = [await report(anyio.Path(tmp_path / f"{each}.json")) for each in witnesses]
    assert len(reports) >= 2, "the server and its engine are processes of their own"
    owners = {owner for found in reports for owner in found["slots"]}
    assert {"AsyncLLM", "EngineCore", "Scheduler", "OutputProcessor"} <= owners
    for found in reports:
        # vLLM imports each plugin's module to call it; ours returns at once and imports nothing.
        assert set(found["modules"]) <= {"nnrp_sched_patches", "nnrp_sched_patches.plugin"}
        assert not found["wrapt"]
        for owner, members in found["slots"].items():
            assert not [name for name in members if name.startswith("nnrp")], owner
            assert "wrapt" not in str(set(members.values())), owner


def installed_witness(pid: int) -> bool:
    """Whether a process has the witness: SIGUSR1 would end one that has not."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (signal.SIGUSR1 - 1) & 1)


async def report(path: anyio.Path) -> dict[str, Any]:
    """What a process wrote, once it did."""
    while not await path.exists():
        pass
    found: dict[str, Any] = json.loads(await path.read_text())
    return found
