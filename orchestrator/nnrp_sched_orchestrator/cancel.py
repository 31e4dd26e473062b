"""Cancelling a cone: everything that an agent and those below it have going."""

import time
from collections.abc import Sequence
from typing import Any

import anyio

from nnrp_sched_orchestrator.records import CancellationReport, Receipt
from nnrp_sched_orchestrator.running import Running


async def cancel_cone(
    streams: Sequence[Running[Any, Any]], reason: str, seconds: float
) -> CancellationReport:
    """Stop all of them and wait for the proofs, at most so long.

    They are told in one turn of the loop, so that the aborts of one endpoint go out together. What
    could not be confirmed by then has a receipt that says so.
    """
    began = time.monotonic()
    for stream in streams:
        stream.end(reason)
    with anyio.move_on_after(seconds):
        for stream in streams:
            await stream.over.wait()
    receipts: list[Receipt] = [stream.proof_now(seconds) for stream in streams]
    return CancellationReport(
        tuple(receipts),
        tokens_spent=sum(receipt.tokens or 0 for receipt in receipts),
        seconds=time.monotonic() - began,
    )
