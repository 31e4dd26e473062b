"""A client killed in the middle of its streams: a real vLLM stops them, and no other client's."""

import json
import signal
import sys

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.client import connect
from nnrp_sched.engine.records import AbortReceipt
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.transport import background_tasks, parse_endpoint
from nnrp_sched_patches.launch import Serving
from tests.support.serving import scripted_server
from tests.support.vllm_chats import body

pytestmark = pytest.mark.anyio

SECONDS = 120
WITHIN_SECONDS = 1.0
"""From the kill until nothing of it is left in the engine (issue 4)."""
STREAMS = 3
ENDLESS = body("Count.", max_tokens=1500, ignore_eos=True)

_CLIENT = """
import anyio, json, sys
from nnrp_sched.client import connect
async def main():
    async def stream():
        async for _ in session.chat(json.loads(sys.argv[2]), stream=True):
            sys.stdout.write(".")
            sys.stdout.flush()
    async with connect(sys.argv[1]) as connection, connection.session() as session:
        async with anyio.create_task_group() as tasks:
            for _ in range(int(sys.argv[3])):
                tasks.start_soon(stream)
anyio.run(main)
"""


async def running(serving: Serving) -> int:
    """How many requests the scheduler has, running and waiting."""
    snapshot = await serving.engine.queue()
    assert snapshot.authoritative
    return snapshot.running + snapshot.waiting


async def test_the_work_of_a_killed_client_is_stopped_in_the_engine_within_a_second(
    serving: Serving,
) -> None:
    records: list[OperationRecord] = []
    async with (
        background_tasks() as tasks,
        scripted_server(serving.engine, observers=[records.append]) as served,
    ):
        await served.server.listen(parse_endpoint("nnrp://127.0.0.1:0"), tasks)
        address = str(served.server.endpoints[0])
        command = [sys.executable, "-c", _CLIENT, address, json.dumps(ENDLESS), str(STREAMS)]
        async with connect(address) as connection, connection.session() as session:
            with anyio.fail_after(SECONDS):
                mine = session.chat(ENDLESS, stream=True)
                await anext(mine)
                async with await anyio.open_process(command, stderr=None) as victim:
                    assert victim.stdout is not None
                    assert b"." in await victim.stdout.receive()
                    while await running(serving) < STREAMS + 1:
                        await checkpoint()
                    victim.send_signal(signal.SIGKILL)
                    with anyio.fail_after(WITHIN_SECONDS):
                        while await running(serving) > 1:
                            await checkpoint()
                    assert await victim.wait() == -signal.SIGKILL
                # The neighbour still streams.
                for _ in range(3):
                    await anext(mine)
                assert (await mine.cancel()).status == "cancelled"
                while len(records) < STREAMS + 1:
                    await checkpoint()
    lost = [record for record in records if record.outcome == "silent"]
    assert len(lost) == STREAMS
    for record in lost:
        assert record.abort is not None
        assert record.abort.reason == "lost"
        receipt = record.abort.receipt
        assert isinstance(receipt, AbortReceipt)
        assert (receipt.accepted, receipt.authoritative, receipt.state) == (True, True, "running")
    assert serving.engine.ledger.live == []
