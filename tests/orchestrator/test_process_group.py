"""The processes of a call: all are found, and none is left."""

import os
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nnrp_sched_orchestrator import process_group
from nnrp_sched_orchestrator.process_group import MARK, ProcessGroup, marked
from nnrp_sched_orchestrator.processes import Living, living
from tests.support.processes import SECONDS, alive, written

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def started(script: str, told: Path) -> AsyncGenerator[ProcessGroup, None]:
    """A shell as the leader of a group; `$told` is where it writes process ids."""
    environment, mark = marked({**os.environ, "told": str(told)})
    process = await anyio.open_process(
        ["/bin/sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    )
    try:
        yield ProcessGroup.of(process.pid, mark)
    finally:
        with anyio.CancelScope(shield=True):
            if alive(process.pid):
                process.kill()
            await process.wait()
            await process.aclose()


async def test_children_that_ignore_sigterm_are_killed(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    deaf = "trap '' TERM; (trap '' TERM; sleep 1000 & echo $! >>$told; wait) & sleep 1000 & " + (
        "echo $! >>$told; echo $$ >>$told; wait; wait"
    )
    async with started(deaf, told) as group:
        pids = await written(told, 3)
        assert (await group.members()).keys() >= set(pids)
        with anyio.fail_after(SECONDS):
            assert await group.end(0.05)
        assert not any(alive(pid) for pid in pids)
        assert await group.members() == {}


async def test_where_a_look_takes_longer_than_the_kernel_may_the_deaf_are_killed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def slowly(since: int) -> list[Living]:
        # What stood there before, as when the look's thread had to wait for the interpreter.
        found = await living(since)
        await anyio.sleep(0.05)
        return found

    monkeypatch.setattr(process_group, "living", slowly)
    monkeypatch.setattr(process_group, "_KILL_SECONDS", 0.01)
    told = tmp_path / "pids"
    async with started("trap '' TERM; sleep 1000 & echo $$ >>$told; wait; wait", told) as group:
        (pid,) = await written(told)
        with anyio.fail_after(SECONDS):
            assert await group.end(0.01)
        assert not alive(pid)


async def test_who_heeds_sigterm_is_not_killed(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    polite = "trap 'echo 7 >>$told; exit 0' TERM; echo $$ >>$told; while :; do sleep 0.01; done"
    async with started(polite, told) as group:
        await written(told)
        with anyio.fail_after(SECONDS):
            assert await group.end(SECONDS)
    assert told.read_text().split()[1] == "7"


@pytest.mark.parametrize(
    "escape",
    ["setsid sh $child & wait", "exec bash -c 'set -m; sh $child & wait'"],
    ids=["a session of its own", "a group of its own"],
)
async def test_who_left_the_group_is_found_too(escape: str, tmp_path: Path) -> None:
    told = tmp_path / "pids"
    child = tmp_path / "child"
    child.write_text("echo $$ >>$told; exec sleep 1000")
    async with started(f"export child={child}; {escape}", told) as group:
        (pid,) = await written(told)
        assert os.getpgid(pid) != group.leader
        with anyio.fail_after(SECONDS):
            assert await group.end(1.0)
        assert not alive(pid)


async def test_a_process_of_another_call_is_left_alone(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    async with started("echo $$ >>$told; sleep 1000", told) as other:
        await written(told)
        async with started("exit 0", tmp_path / "none") as group:
            with anyio.fail_after(SECONDS):
                assert await group.end(0.05)
        assert alive(other.leader)
        os.killpg(other.leader, signal.SIGKILL)


def test_a_call_within_a_call_keeps_the_mark_of_the_outer_one() -> None:
    outer, first = marked({"PATH": "/bin"})
    inner, second = marked(outer)
    assert outer == {"PATH": "/bin", MARK: first}
    assert first in inner[MARK]
    assert second in inner[MARK]
    assert first != second
