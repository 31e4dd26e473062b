"""Control messages over a real, patched vLLM: what they do reaches the engine and comes from it."""

import time

import anyio
import pytest

from nnrp_sched.engine.records import AbortReceipt
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched_patches.launch import Serving
from tests.support.serving import scripted_server
from tests.support.vllm_chats import body

pytestmark = pytest.mark.anyio

BUDGET = 10


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_spent_token_budget_ends_a_real_answer_with_what_was_produced(
    serving: Serving, streamed: bool
) -> None:
    records: list[OperationRecord] = []
    chat = body("Count.", max_tokens=1500, ignore_eos=True)
    async with (
        scripted_server(serving.engine, observers=[records.append]) as served,
        served.connect() as connection,
        connection.session() as session,
    ):
        with anyio.fail_after(120):
            outcome = await session.chat(chat, stream=streamed, token_budget=BUDGET).result()
    (record,) = records
    assert outcome.status == "completed"
    assert outcome.text
    assert outcome.body is not None
    assert outcome.body["choices"][0]["finish_reason"] == "length"
    assert record.abort is not None
    assert record.abort.reason == "budget"
    assert isinstance(record.abort.receipt, AbortReceipt)
    assert (record.abort.receipt.accepted, record.abort.receipt.authoritative) == (True, True)
    assert record.abort.receipt.tokens is not None
    assert BUDGET <= record.abort.receipt.tokens < 200


async def test_a_deadline_takes_a_running_request_out_of_the_engine(serving: Serving) -> None:
    records: list[OperationRecord] = []
    chat = body("Count.", max_tokens=1500, ignore_eos=True)
    async with (
        scripted_server(serving.engine, observers=[records.append]) as served,
        served.connect() as connection,
        connection.session() as session,
    ):
        with anyio.fail_after(120):
            running = session.chat(chat, stream=True)
            await anext(running)
            running.set_deadline(time.time() + 0.1)
            outcome = await running.result()
    assert (outcome.status, outcome.reason) == ("dropped", "deadline_expired")
    assert records[0].abort is not None
    assert isinstance(records[0].abort.receipt, AbortReceipt)
    assert records[0].abort.receipt.state == "running"
