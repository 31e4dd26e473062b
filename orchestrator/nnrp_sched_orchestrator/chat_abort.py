"""The abort of one chat, by the best means its server has."""

import time

import anyio

from nnrp_sched.client import Chat, Outcome
from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile.scheduling import AbortReceipt, RequestState
from nnrp_sched_orchestrator.aborts import Aborts
from nnrp_sched_orchestrator.pool_records import Aborted
from nnrp_sched_orchestrator.slot import Slot

_UNHEARD = "the engine took the abort, and its scheduler did not confirm it"
_NO_CONTROL = "the server has no operation.abort; it was told by CANCEL"


async def abort_chat(
    slot: Slot, aborts: Aborts, chat: Chat, reason: str, seconds: float
) -> Aborted:
    """End a chat of a slot's session; never waits longer than `seconds`, and raises nothing.

    By `operation.abort`, which answers with what the scheduler did; where there is none or it goes
    wrong by CANCEL, to which the answer is only how the chat ended.
    """
    began = time.monotonic()

    def receipt(
        state: RequestState, *, accepted: bool, sure: bool, tokens: int | None
    ) -> AbortReceipt:
        passed = (time.monotonic() - began) * 1000
        return AbortReceipt(chat.name or "", state, accepted, sure, tokens, passed)

    if chat.outcome is not None:
        tokens = _tokens(chat.outcome)
        return Aborted(receipt("finished", accepted=False, sure=True, tokens=tokens))
    if chat.name is None:
        await chat.cancel(reason)
        return Aborted(receipt("admitting", accepted=True, sure=True, tokens=0))
    failure = _NO_CONTROL
    if slot.features.control and slot.alive:
        receipts, why = await aborts.ask(slot.control, [chat.name], seconds)
        if chat.name in receipts:
            told = receipts[chat.name]
            return Aborted(told, None if told.authoritative else _UNHEARD)
        failure = why or failure
    if not slot.alive:
        lost = receipt("unknown", accepted=False, sure=False, tokens=None)
        return Aborted(lost, f"the connection was lost: {slot.session.lost}")
    outcome: Outcome | None = None
    with anyio.move_on_after(max(0.0, seconds - (time.monotonic() - began))):
        try:
            chat.ask_cancel(reason)
            await chat.ended()  # What still comes is for whoever reads it.
            outcome = await chat.result()
        except NnrpSchedError as error:
            failure = f"{failure}, and that ended with: {error}"
    if outcome is None:
        return Aborted(receipt("unknown", accepted=False, sure=False, tokens=None), failure)
    accepted = outcome.status == "cancelled"
    state: RequestState = "unknown" if accepted else "finished"
    return Aborted(receipt(state, accepted=accepted, sure=False, tokens=_tokens(outcome)), failure)


def _tokens(outcome: Outcome) -> int | None:
    """The output tokens of a chat that has ended, where the server counted them."""
    counted = (outcome.usage or {}).get("completion_tokens")
    return counted if isinstance(counted, int) else None
