"""A server process is killed under load and started again: by its own record nothing ran twice."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched.profile import Event
from nnrp_sched_orchestrator.errors import OperationLost
from nnrp_sched_orchestrator.orchestrator import Orchestrator
from nnrp_sched_orchestrator.records import ModelResult
from nnrp_sched_orchestrator.stream import Stream
from tests.support.programs import until
from tests.support.server_stage import quick
from tests.support.serving import script

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_task")]

SECONDS = 40
EACH = 6
"""Calls of each kind."""
WORDS = 200
LONG = script(text=" w", repeat=WORDS, delay_ms=10)
"""Takes two seconds: it still runs when its server is killed."""

Call = Stream[Event, ModelResult]


@contextmanager
def served(address: str, log: Path) -> Generator["subprocess.Popen[str]"]:
    """A scripted server as a process, which writes down each operation that has ended."""
    options = ("--log-level", "info", "--log-format", "json")
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "nnrp_sched", *options, "serve", "--listen", address],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


def recorded(log: Path) -> Counter[tuple[str, str]]:
    """What a server wrote down: how often each call, by its span, ended in which way."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    ended: list[dict[str, Any]] = [line["observation"] for line in lines if "observation" in line]
    return Counter((f"{each['trace_span_id']:016x}", each["terminal_outcome"]) for each in ended)


def completed(*calls: Call) -> Counter[tuple[str, str]]:
    """The record of calls that were completed, each once."""
    return Counter((call.traceparent.split("-")[2], "completed") for call in calls)


async def begun(calls: list[Call]) -> None:
    """Wait until each has said something."""
    await until(lambda: all(call.partial.text for call in calls))


async def test_a_server_killed_and_started_again_runs_no_call_twice(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/s.sock"
    first, second = tmp_path / "first", tmp_path / "second"
    pool = quick(max_in_flight=2 * EACH, unavailable_seconds=SECONDS)
    with anyio.fail_after(SECONDS):
        with served(address, first) as server:
            async with (
                Orchestrator.connect(address, sessions=2, pool_settings=pool) as orchestrator,
                orchestrator.program("p") as program,
            ):
                early = [program.chat(script(text="a b")) for _ in range(EACH)]
                for call in early:
                    assert await call.text() == "a b"
                failing = [program.chat(LONG) for _ in range(EACH)]
                resuming = [program.chat(LONG, on_loss="resubmit") for _ in range(EACH)]
                await begun([*failing, *resuming])
                # They find no place, and have not been submitted when the server is killed.
                waiting = [program.chat(script(text="c d")) for _ in range(EACH)]
                await until(lambda: all(call.state.kind == "queued" for call in waiting))
                server.kill()
                server.wait(SECONDS)
                with served(address, second):
                    await _check(failing, resuming, waiting)
                    late = program.chat(script(text="e f"))
                    assert await late.text() == "e f"
                    spent = program.spent
    assert recorded(first) == completed(*early)
    assert recorded(second) == completed(*resuming, *waiting, late)
    partial = sum(call.receipt.tokens or 0 for call in failing if call.receipt is not None)
    assert spent.tokens == EACH * 4 + EACH * WORDS + 2 + partial


async def _check(failing: list[Call], resuming: list[Call], waiting: list[Call]) -> None:
    """Each ends as its policy says."""
    for call in failing:
        with pytest.raises(OperationLost) as caught:
            await call.text()
        assert 0 < len(caught.value.partial.text) < len(" w" * WORDS)
        assert call.receipt is not None
        assert not call.receipt.authoritative
    for call in resuming:
        assert await call.text() == " w" * WORDS
    for call in waiting:
        assert await call.text() == "c d"


async def test_what_was_cancelled_while_its_server_was_gone_is_not_made_when_it_is_back(
    tmp_path: Path,
) -> None:
    address = f"unix://{tmp_path}/s.sock"
    second = tmp_path / "second"
    with anyio.fail_after(SECONDS):
        with served(address, tmp_path / "first") as server:
            async with Orchestrator.connect(address, pool_settings=quick()) as orchestrator:
                async with orchestrator.program("p") as program:
                    calls = [program.chat(LONG, on_loss="resubmit") for _ in range(EACH)]
                    await begun(calls)
                    server.kill()
                    server.wait(SECONDS)
                    await until(lambda: orchestrator.pool.endpoints[0].state != "up")
                    report = await program.cancel("enough", seconds=5)
                with served(address, second):
                    async with orchestrator.program("q") as other:
                        late = other.chat(script(text="e f"))
                        assert await late.text() == "e f"
    assert len(report.receipts) == EACH
    assert [call.partial.status for call in calls] == ["cancelled"] * EACH
    assert all(each.authoritative or each.unconfirmed for each in report.receipts)
    assert recorded(second) == completed(late)
