"""A client killed in the middle of a stream: the engine stops its work, and no other client's."""

import signal
import sys
from pathlib import Path

import anyio
import pytest

from nnrp_sched.client import connect
from nnrp_sched.engine.records import AbortReceipt
from nnrp_sched.observe.record import OperationRecord
from tests.support.carriers import ENDPOINTS, Place
from tests.support.serving import SECONDS, body, script, scripted_server

pytestmark = pytest.mark.anyio

WITHIN_SECONDS = 1.0
"""From the kill until nothing of it is left in the engine (issue 4)."""

_CLIENT = """
import anyio, sys
from nnrp_sched.client import connect
async def main():
    async with connect(sys.argv[1]) as connection, connection.session() as session:
        body = {"model": "example-model", "messages": [{"role": "user", "content": "x"}]}
        body["scripted"] = {"text": "x", "hold": True}
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(session.chat(body, stream=True).result)
            async for _ in session.chat(body, stream=True):
                sys.stdout.write("streaming\\n")
                sys.stdout.flush()
anyio.run(main)
"""


@pytest.mark.parametrize("kind", [kind for kind in ENDPOINTS if kind in ("tcp", "unix", "ws")])
async def test_the_work_of_a_killed_client_is_stopped_within_a_second(
    kind: str, tmp_path: Path
) -> None:
    records: list[OperationRecord] = []
    async with scripted_server(observers=[records.append], place=Place(kind, tmp_path)) as served:
        address = str(served.server.endpoints[0])
        async with connect(address) as connection, connection.session() as session:
            with anyio.fail_after(SECONDS):
                mine = session.chat(script(text="mine", hold=True), stream=True)
                await anext(mine)
                async with await anyio.open_process(
                    [sys.executable, "-c", _CLIENT, address], stderr=None
                ) as victim:
                    assert victim.stdout is not None
                    assert b"streaming" in await victim.stdout.receive()
                    while len((await session.queue()).operations) < 10:
                        pass
                    victim.send_signal(signal.SIGKILL)
                    with anyio.fail_after(WITHIN_SECONDS):
                        while len((await session.queue()).operations) > 1:
                            pass
                    await victim.wait()
                assert (await session.chat(body()).result()).status == "completed"
                outcome = await mine.cancel()
    assert (outcome.status, outcome.text) == ("cancelled", "mine")
    lost = [record for record in records if record.outcome == "silent"]
    assert len(lost) == 9
    for record in lost:
        assert record.abort is not None
        assert record.abort.reason == "lost"
        assert isinstance(record.abort.receipt, AbortReceipt)
        assert record.abort.receipt.accepted
