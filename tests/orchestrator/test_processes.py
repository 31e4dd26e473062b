"""Looking at all processes: once for all who ask, and never too early for any of them."""

import os
import subprocess
import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched_orchestrator import processes
from nnrp_sched_orchestrator.processes import Stat, living, stat
from tests.support.programs import SECONDS, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]


class Gate:
    """Counts looks, by when they come to this process, and holds each until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = 0
        self.go = threading.Semaphore(0)

        def gated(pid: int) -> Stat | None:
            if pid == os.getpid():
                self.began += 1
                assert self.go.acquire(timeout=SECONDS)
            return stat(pid)

        monkeypatch.setattr(processes, "stat", gated)


async def test_a_process_is_seen_with_its_group_its_session_and_its_variables() -> None:
    process = await anyio.open_process(
        ["/bin/sleep", "1000"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={"COLOUR": "green"},
    )
    try:
        found = stat(process.pid)
        assert found is not None
        with anyio.fail_after(SECONDS):
            (seen,) = [each for each in await living(found.started) if each.pid == process.pid]
            assert (seen.group, seen.session) == (process.pid, process.pid)
            assert seen.environment == b"COLOUR=green\0"
            later = await living(found.started + 1)
            assert process.pid not in [each.pid for each in later]
            assert os.getpid() in [each.pid for each in await living()]
    finally:
        process.kill()
        await process.wait()
        await process.aclose()
    assert process.pid not in [each.pid for each in await living()]
    assert stat(process.pid) is None


async def test_all_who_ask_before_a_look_begins_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    answers: list[object] = []

    async def ask(since: int) -> None:
        answers.append(await living(since))

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, 5)
            await until(lambda: gate.began == 1)
            for since in range(40):
                tasks.start_soon(ask, since)
            gate.go.release()
            await until(lambda: gate.began == 2)
            assert len(answers) == 1  # The others' look begins after they have asked.
            gate.go.release()
    assert len(answers) == 41
    assert gate.began == 2
    first, *others = answers
    assert all(each is others[0] for each in others)
    assert first is not others[0]


async def test_a_look_whose_taker_gives_up_is_taken_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch)
    answers: list[object] = []

    async def ask(scope: anyio.CancelScope) -> None:
        with scope:
            answers.append(await living())

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            scopes = [anyio.CancelScope() for _ in range(3)]
            tasks.start_soon(ask, scopes[0])
            await until(lambda: gate.began == 1)
            for scope in scopes[1:]:
                tasks.start_soon(ask, scope)
            await checkpoint()
            scopes[1].cancel()
            gate.go.release(2)
    assert gate.began == 2
    assert len(answers) == 2
