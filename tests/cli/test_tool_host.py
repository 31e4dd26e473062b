"""`nnrp-sched tool-host`: tools of a module, served."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched.client import Chat, connect
from nnrp_sched.profile.tools import TOOLS_CALL, TOOLS_SCHEMA, build_tools
from nnrp_sched_orchestrator.remote_tool import remote_tools
from nnrp_sched_orchestrator.tool_call import BoundedCall, ToolLimits
from tests.cli.test_commands import SECONDS, until_unreachable
from tests.support.processes import alive, written

MODULE = '''
"""Tools of a test."""

from collections.abc import AsyncIterator

import anyio

from nnrp_sched_orchestrator.subprocess_tool import ProcessSettings, subprocess_tool


async def count(to: int, pause: float = 0.0) -> AsyncIterator[str]:
    """Count."""
    for number in range(to):
        yield f"{number} "
        await anyio.sleep(pause)


@subprocess_tool(settings=ProcessSettings(grace_seconds=0.1))
def shell(script: str) -> list[str]:
    """Run a script."""
    return ["/bin/sh", "-c", script]


TOOLS = [count, shell]
BY_NAME = {"count": count}
NOTHING = [1]


def blocking(path: str) -> str:
    return path
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the module of the tools."""
    (tmp_path / "my_tools.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("raise ValueError('not today')\n")
    return tmp_path


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nnrp_sched", "tool-host", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=folder,
        env=_environment(environment),
    )


@contextmanager
def hosting(
    folder: Path, *arguments: str, **environment: str
) -> Generator[tuple["subprocess.Popen[str]", Any]]:
    """A tool host as a child process, and its readiness line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nnrp_sched", "tool-host", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=_environment(environment),
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


def _environment(members: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.getcwd(), **members}


@pytest.mark.anyio
async def test_the_tools_of_a_module_can_be_called_from_elsewhere(folder: Path) -> None:
    address = f"unix://{folder}/tools.sock"
    with hosting(folder, "my_tools:TOOLS", "--listen", address) as (_, ready):
        assert ready["ready"] is True
        assert (ready["endpoints"], ready["tools"]) == ([address], ["count", "shell"])
        assert (ready["model"], ready["http"], ready["vllm"]) == (None, None, None)
        async with connect(address) as connection, connection.session() as session:
            document = await session.capabilities()
            tools = await remote_tools(session)
            output: list[str] = []

            async def emit(text: str) -> None:
                output.append(text)

            with anyio.fail_after(SECONDS):
                call = BoundedCall(tools["count"], '{"to":3}', ToolLimits())
                answer = await call.run(emit)
    assert TOOLS_SCHEMA in [each["name"] for each in document["extensions"]]
    assert (answer.status, "".join(output)) == ("completed", "0 1 2 ")


@pytest.mark.anyio
async def test_sigterm_lets_calls_finish_and_a_second_one_leaves_no_process(folder: Path) -> None:
    address = f"unix://{folder}/tools.sock"
    told = folder / "pids"
    pids: list[int] = []
    script = f"trap '' TERM; echo $$ >>{told}; sleep 1000 & echo $! >>{told}; wait; wait"
    with hosting(folder, "my_tools:BY_NAME", "--listen", address) as (process, _):
        async with connect(address) as connection, connection.session() as session:
            body = {"name": "count", "arguments": '{"to":20,"pause":0.01}'}
            chat = Chat(session, build_tools(TOOLS_CALL, body))
            await anext(chat)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(SECONDS):
                await until_unreachable(address)
                outcome = await chat.result()
        assert outcome.status == "completed"
        assert process.wait(SECONDS) == 0
    with hosting(folder, "my_tools:shell", "--listen", address) as (process, _):
        async with connect(address) as connection, connection.session() as session:
            body = {"name": "shell", "arguments": json.dumps({"script": script})}
            chat = Chat(session, build_tools(TOOLS_CALL, body))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(chat.result)
                pids += await written(told, 2)
                process.send_signal(signal.SIGTERM)
                with anyio.fail_after(SECONDS):
                    await until_unreachable(address)
                    process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert not any(alive(pid) for pid in pids)


def test_an_engine_can_have_tools_beside_it(folder: Path) -> None:
    address = f"unix://{folder}/both.sock"
    command = [sys.executable, "-m", "nnrp_sched", "serve", "--tools", "my_tools:TOOLS"]
    process = subprocess.Popen(
        [*command, "--listen", address],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=_environment({}),
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        found = subprocess.run(
            [sys.executable, "-m", "nnrp_sched", "capabilities", "--endpoint", address],
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)
    document = json.loads(found.stdout)
    assert (ready["model"], ready["tools"]) == ("example-model", ["count", "shell"])
    assert document["compatibility_levels"] == [1]
    assert TOOLS_SCHEMA in [each["name"] for each in document["extensions"]]


@pytest.mark.anyio
async def test_the_flags_bound_its_calls_and_have_variables(folder: Path) -> None:
    address = f"unix://{folder}/tools.sock"
    variables = {
        "NNRP_SCHED_TOOL_HOST_LISTEN": address,
        "NNRP_SCHED_TOOL_HOST_MAX_OUTPUT_BYTES": "7",
    }
    with hosting(folder, "my_tools:TOOLS", "--max-seconds", "0.5", **variables) as (_, ready):
        assert ready["endpoints"] == [address]
        async with connect(address) as connection, connection.session() as session:
            with anyio.fail_after(SECONDS):
                body = {"name": "count", "arguments": '{"to":1000000,"pause":0.001}'}
                chat = Chat(session, build_tools(TOOLS_CALL, body))
                outcome = await chat.result()
    assert outcome.body is not None
    assert outcome.body["status"] == "failed"
    assert "0.5 s" in outcome.body["message"]
    assert outcome.body["dropped_bytes"] == outcome.body["output_bytes"] - 7


@pytest.mark.parametrize(
    ("named", "code", "told"),
    [
        ("my_tools", 2, "MODULE:TOOLS"),
        (":TOOLS", 2, "MODULE:TOOLS"),
        ("nobody:TOOLS", 3, "nobody"),
        ("broken:TOOLS", 3, "ValueError: not today"),
        ("my_tools:NOBODY", 3, "NOBODY"),
        ("my_tools:NOTHING", 2, "1 is no tool"),
        ("my_tools:blocking", 2, "not async"),
    ],
)
def test_what_is_no_tool_is_refused_by_name(folder: Path, named: str, code: int, told: str) -> None:
    done = run(folder, named)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_that_cannot_be_had_exits_with_3(folder: Path) -> None:
    absent = f"unix://{folder}/absent/tools.sock"
    done = run(folder, "my_tools:TOOLS", "--listen", absent)
    assert done.returncode == 3
    assert absent in done.stderr


def test_what_everybody_on_the_host_can_reach_is_warned_of(folder: Path) -> None:
    with hosting(folder, "my_tools:TOOLS", "--listen", "nnrp://127.0.0.1:0") as (process, _):
        process.terminate()
        _, warning = process.communicate(timeout=SECONDS)
    assert "every user of this host" in warning
    assert "--token-file" in warning
