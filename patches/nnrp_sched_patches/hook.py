"""What a hook is: one row of the tables, read by `install` and made by `hook_forms`."""

from enum import StrEnum

from msgspec import Struct

from nnrp_sched_patches.seam import Seam


class HookForm(StrEnum):
    """How a hook sits in vLLM; `hook_forms` has one maker for each."""

    ADDED = "added"
    """A new method that vLLM's utility RPC reaches by name; its seam is `absent`."""
    AFTER = "after"
    """Runs when the method has returned, with the instance and the result; changes neither."""
    AROUND = "around"
    """A generator that sees the arguments before the method runs and the result after it."""
    AROUND_ASYNC = "around async"
    """For coroutines: sees the arguments before, and after it how it ended, cancelled included.

    The only form that may change something: the keyword arguments."""
    BEFORE_ASYNC = "before async"
    """For coroutines: awaits its body, then runs the method, unless it is cancelled meanwhile."""


class Hook(Struct, frozen=True):
    """One change the layer makes to vLLM."""

    name: str
    """As hooks.md names it, for receipts and status."""
    form: HookForm
    seam: Seam
    body: str
    """`module:function` of the hook's body, imported when the hook is installed."""
