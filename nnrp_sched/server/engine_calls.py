"""Calls of the engine that must not be trusted: what it raises or answers is foreign code's."""

import asyncio
import logging

import anyio

from nnrp_sched.engine.port import Engine
from nnrp_sched.engine.records import AbortReceipt, ChatBody
from nnrp_sched.profile import Completed
from nnrp_sched.profile.json_values import is_object
from nnrp_sched.server.cancellation import is_our_cancellation

logger = logging.getLogger(__name__)


async def ask_abort(engine: Engine, request_id: str, seconds: float) -> AbortReceipt | None:
    """Stop a call by its handle; None when the engine fails or does not answer within `seconds`.

    Shielded: who asked may be gone, the work is to stop all the same.
    """
    try:
        with anyio.move_on_after(seconds, shield=True):
            receipt = await engine.abort(request_id)
            logger.info("request %s aborted: %s", request_id, receipt)
            return receipt
        logger.warning("request %s: the engine did not confirm its abort", request_id)
    except (Exception, asyncio.CancelledError) as error:
        # The operation ends without a receipt, and says so here.
        if is_our_cancellation(error):
            raise
        logger.exception("request %s: the abort failed", request_id)
    return None


def completed(answer: ChatBody) -> Completed:
    """An engine's answer as the last event; raises `TypeError` when it is no object."""
    if not is_object(answer):
        raise TypeError(f"the engine answered with {type(answer).__name__}, not a chat completion")
    return Completed(body=answer)
