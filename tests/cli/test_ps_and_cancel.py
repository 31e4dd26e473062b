"""`ps` and `cancel` as a user meets them."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

from nnrp_sched.cli.ps import COLUMNS
from nnrp_sched.cli.table import table
from nnrp_sched.client import Chat, Session, connect
from nnrp_sched.profile.workflow import Workflow
from tests.cli.test_commands import SECONDS, run, serving
from tests.support.serving import script

pytestmark = pytest.mark.anyio

ROW = {
    "id",
    "program",
    "agent",
    "source",
    "state",
    "queue_delay_ms",
    "position",
    "estimate_ms",
    "tokens",
}
RECEIPT = {"id", "state", "accepted", "authoritative", "tokens", "latency_ms"}
HELD = script(text="x", hold=True)


def test_what_others_call_themselves_is_shown_and_not_obeyed_by_the_terminal() -> None:
    shown = table(["program"], [["\x1b[2Jgone\nrow\u202e"], ["näive 💥"]])
    assert shown.splitlines()[1:] == ["\ufffd[2Jgone\ufffdrow\ufffd", "näive 💥"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A scripted server that runs one chat at once."""
    with serving("--listen", "nnrp://127.0.0.1:0", "--slots", "1") as (_, ready):
        yield ready["endpoints"][0]


@asynccontextmanager
async def two_chats(endpoint: str) -> AsyncGenerator[tuple[Session, Chat, Chat]]:
    """One chat that runs and one that waits, of the agents a and b of program p."""
    with anyio.fail_after(SECONDS):
        async with connect(endpoint) as connection, connection.session() as session:
            chats = [
                session.chat(HELD, stream=True, workflow=Workflow(program="p", agent=agent))
                for agent in ("a", "b")
            ]
            await anext(chats[0])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(chats[1].result)
                while len((await session.queue()).operations) < 2:
                    pass
                yield session, chats[0], chats[1]
                tasks.cancel_scope.cancel()


async def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return await anyio.to_thread.run_sync(run, *arguments)


async def test_ps_json_tells_every_live_operation(endpoint: str) -> None:
    async with two_chats(endpoint) as (_, running, waiting):
        done = await command("ps", "--json", "--endpoint", endpoint)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = json.loads(done.stdout)["operations"]
    assert set(first) == set(second) == ROW
    assert (first["id"], first["state"], first["agent"]) == (running.name, "running", "a")
    assert (second["id"], second["state"], second["position"]) == (waiting.name, "waiting", 0)
    assert (second["program"], second["source"], second["tokens"]) == ("p", "nnrp", 0)
    assert second["queue_delay_ms"] > 0


async def test_ps_prints_a_table_for_people(endpoint: str) -> None:
    async with two_chats(endpoint) as (_, running, _):
        done = await command("ps", "--endpoint", endpoint)
    heading, titles, first, _ = done.stdout.splitlines()
    assert heading == "1 running, 1 waiting"
    assert titles.split() == list(COLUMNS)
    assert first.split()[:5] == [running.name, "p", "a", "nnrp", "running"]


def test_ps_of_an_idle_server_is_an_empty_table(endpoint: str) -> None:
    done = run("ps", "--endpoint", endpoint)
    assert done.stdout.splitlines()[0] == "0 running, 0 waiting"
    assert json.loads(run("ps", "--json", "--endpoint", endpoint).stdout) == {"operations": []}


async def test_ps_watch_prints_a_line_whenever_something_changed(endpoint: str) -> None:
    watch = ("ps", "--watch", "--json", "--per-second", "20")
    process = await anyio.open_process(
        [sys.executable, "-m", "nnrp_sched", *watch, "--endpoint", endpoint]
    )
    assert process.stdout is not None
    text = b""

    async def until(count: int) -> None:
        """Read until the newest whole line shows as many operations."""
        nonlocal text
        assert process.stdout is not None
        while True:
            lines = text.split(b"\n")[:-1]
            if lines and len(json.loads(lines[-1])["operations"]) == count:
                return
            text += await process.stdout.receive()

    with anyio.fail_after(SECONDS):
        await until(0)
        async with two_chats(endpoint):
            await until(2)
        await until(0)
        process.terminate()
        await process.wait()
        await process.aclose()


async def test_cancel_by_id_prints_a_receipt_for_each(endpoint: str) -> None:
    async with two_chats(endpoint) as (_, running, waiting):
        done = await command(
            "cancel", str(waiting.name), str(running.name), "--json", "--endpoint", endpoint
        )
        assert (await running.result()).status == "cancelled"
    receipts = json.loads(done.stdout)["receipts"]
    assert all(set(each) == RECEIPT for each in receipts)
    told = [(each["id"], each["state"], each["accepted"], each["tokens"]) for each in receipts]
    assert told == [(waiting.name, "waiting", True, 0), (running.name, "running", True, 1)]
    assert all(each["authoritative"] for each in receipts)
    assert done.returncode == 0


@pytest.mark.parametrize(("flag", "value", "ended"), [("--agent", "b", 1), ("--program", "p", 2)])
async def test_cancel_of_an_agent_or_a_program(
    endpoint: str, flag: str, value: str, ended: int
) -> None:
    async with two_chats(endpoint) as (session, running, _):
        done = await command("cancel", flag, value, "--endpoint", endpoint)
        left = (await session.queue()).operations
        await running.cancel()
    assert len(done.stdout.splitlines()) == 1 + ended
    assert len(left) == 2 - ended
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", [("1.99", "9.9"), ("--agent", "x"), ("--program", "x")])
def test_cancel_exits_with_1_when_nothing_was_ended(
    endpoint: str, arguments: tuple[str, ...]
) -> None:
    done = run("cancel", *arguments, "--json", "--endpoint", endpoint)
    assert done.returncode == 1
    receipts = json.loads(done.stdout)["receipts"]
    assert [each["id"] for each in receipts if each["state"] == "unknown"] == (
        ["1.99", "9.9"] if len(arguments) == 2 and arguments[0][0] != "-" else []
    )


@pytest.mark.parametrize(
    "arguments", [(), ("1.1", "--agent", "a"), ("--agent", "a", "--program", "p")]
)
def test_cancel_needs_exactly_one_kind(arguments: tuple[str, ...]) -> None:
    done = run("cancel", *arguments)
    assert done.returncode == 2
    assert "only one of them" in done.stderr


@pytest.mark.parametrize("name", ["ps", "cancel"])
def test_a_server_that_is_not_there_exits_with_5(name: str, tmp_path: Any) -> None:
    arguments = ["x"] if name == "cancel" else []
    done = run(name, *arguments, "--endpoint", f"unix://{tmp_path}/nobody.sock")
    assert done.returncode == 5
    assert "Traceback" not in done.stderr


def test_a_table_is_as_wide_as_its_cells() -> None:
    text = table(("id", "ok"), [("a-long-name", True), ("b", None), (1.25, False)])
    assert text.splitlines() == [
        "id           ok",
        "a-long-name  yes",
        "b            -",
        "1.2          no",
    ]
