"""`nnrp-sched run` whose engine process is killed: every caller hears, and the server ends."""

import json
import os
import signal
import sys
import time
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from anyio.streams.buffered import BufferedByteReceiveStream

from nnrp_sched.client import Session, connect
from nnrp_sched.errors import EngineLost
from tests.support.vllm_chats import body
from tests.support.vllm_http import post_chat

pytestmark = pytest.mark.anyio

SECONDS = 120
SLOTS = 8
WAITING = 3
ENDLESS = body("Tell a long story.", max_tokens=1500, ignore_eos=True)
CALLERS_WAIT_S = 2.0
COMMAND = (
    *(sys.executable, "-m", "nnrp_sched", "run", "--patch-vllm"),
    *("--listen", "nnrp://127.0.0.1:0", "--http", "127.0.0.1:0"),
)


class Callers:
    """Chats over NNRP and HTTP at once, and when each heard what."""

    def __init__(self) -> None:
        self.nnrp: list[Any] = []
        self.http: list[Any] = []
        self.heard: list[float] = []

    async def over_nnrp(self, session: Session, stream: bool) -> None:
        self.nnrp.append(await session.chat(ENDLESS, stream=stream).result())
        self.heard.append(time.monotonic())

    async def over_http(self, address: str) -> None:
        try:
            status, _ = await post_chat(address, ENDLESS)
            self.http.append(status)
        except OSError as error:
            self.http.append(error)
        self.heard.append(time.monotonic())


async def test_running_and_waiting_callers_hear_within_two_seconds_and_the_server_ends() -> None:
    callers, killed = Callers(), 0.0
    with anyio.fail_after(SECONDS):
        async with await anyio.open_process(COMMAND, stderr=None) as process:
            assert process.stdout is not None
            line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 65536)
            ready = json.loads(line)
            (engine,) = [one["pid"] for one in ready["patched"] if one["process"] == "engine"]
            async with (
                connect(ready["endpoints"][0]) as connection,
                connection.session() as session,
                anyio.create_task_group() as tasks,
            ):
                for number in range(SLOTS + WAITING - 1):
                    tasks.start_soon(callers.over_nnrp, session, number % 2 == 0)
                tasks.start_soon(callers.over_http, ready["http"])
                while True:
                    snapshot = await session.queue()
                    if (snapshot.running, snapshot.waiting) == (SLOTS, WAITING):
                        break
                    await checkpoint()
                killed = time.monotonic()
                os.kill(engine, signal.SIGKILL)
            code = await process.wait()
    assert len(callers.heard) == SLOTS + WAITING
    assert max(callers.heard) - killed < CALLERS_WAIT_S
    assert {(outcome.status, outcome.error is not None) for outcome in callers.nnrp} == {
        ("error", True)
    }
    assert callers.http != [200]
    assert code == EngineLost.exit_code
