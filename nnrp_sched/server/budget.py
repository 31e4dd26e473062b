"""A budget of output tokens: what BUDGET_UPDATE says of it, and what a spent one leaves.

Pure. Only tokens can be counted here; budgets of compute, memory or bandwidth are refused.
"""

from typing import Any

from msgspec.structs import replace

from nnrp_sched.profile import Completed
from nnrp_sched.profile.json_values import is_array, is_object
from nnrp_sched.wire import BudgetChange, BudgetUpdate

_CUT_SHORT = ("abort", None)
"""What engines call an answer that was stopped from outside; nothing where the answer goes on, for
others, and only this operation's was cut."""
_SPENT = "length"
"""OpenAI's reason for an answer that reached a number of tokens."""


def refusal(wish: BudgetUpdate) -> str | None:
    """Why a budget cannot be kept to, or None."""
    if wish.compute or wish.memory or wish.bandwidth:
        return "budget_update_unsupported: only token budgets are kept to"
    return None


def changed(limit: int | None, wish: BudgetUpdate) -> int | None:
    """The limit after a change; None is no limit.

    A budget of 0 tokens names no budget, because the field is always there: it lifts the limit.
    An increment adds to a limit, and where there is none it changes nothing.
    """
    if wish.flags == BudgetChange.INCREMENT:
        return None if limit is None else limit + wish.token_budget
    return wish.token_budget or None


def spent(completed: Completed) -> Completed:
    """An answer that ended because its budget was spent: its choices were cut at a length."""
    choices: Any = completed.body.get("choices")
    if not is_array(choices):
        return completed
    told = [
        {**choice, "finish_reason": _SPENT}
        if is_object(choice) and choice.get("finish_reason") in _CUT_SHORT
        else choice
        for choice in choices
    ]
    return replace(completed, body={**completed.body, "choices": told})
