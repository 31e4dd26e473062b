"""Whether a scheduler class passes on to vLLM's what the hooks watch there.

The engine's hooks sit on vLLM's own Scheduler. A user's `--scheduler-cls` that derives from it has
them too, as far as its own methods call the ones below (hooks.md 2.1). Any other would run beside
them: requests would wait, start and end unseen.
"""

import inspect
from collections.abc import Iterator
from importlib import import_module
from types import CodeType
from typing import Any

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches.engine_hooks import SCHEDULER, WATCHED

_LOST = {
    "add_request": "requests that wait, with delay and position",
    "schedule": "when requests start, are preempted and go on",
    "finish_requests": "ends by aborts",
    "_free_request": "ends",
}

ADVICE = (
    "derive it from vLLM's AsyncScheduler (or Scheduler) and call super() in each of "
    + ", ".join(WATCHED)
    + ", or run without --patch-vllm: then aborts go through vLLM's public interface, and there is"
    " no live queue and no change of priorities"
)


def misfit(scheduler: type) -> str | None:
    """What of a scheduler class the hooks would not see, as text; None when they see all.

    A method that replaces one of vLLM's counts as passing on when some function of the class's own
    calls the replaced one through `super()` or a base class: what the code says, not what it does.
    """
    bases = inspect.getmro(scheduler)
    names = [_name(base) for base in bases]
    if SCHEDULER not in names:
        lost = ", ".join(_LOST.values())
        return f"the scheduler {names[0]} is not derived from {SCHEDULER}: unseen were {lost}"
    own = bases[: names.index(SCHEDULER)]
    kept = [method for method in WATCHED if not _passed_on(own, bases, method)]
    if not kept:
        return None
    lost = ", ".join(_LOST[method] for method in kept)
    return (
        f"the scheduler {names[0]} does not call vLLM's {', '.join(kept)} from its own:"
        f" unseen were {lost}"
    )


def scheduler_problem(path: str) -> str | None:
    """As `misfit`, for a `--scheduler-cls`, which is imported.

    Raises ImportError, AttributeError or ValueError for one that is not there or no class.
    """
    module, _, name = path.rpartition(".")
    scheduler = getattr(import_module(module), name)
    if not isinstance(scheduler, type):
        raise ValueError(f"{path} is not a class")
    return misfit(scheduler)


def check_scheduler_class(path: str) -> None:
    """Raise UnsupportedVllm for a `--scheduler-cls` that the hooks would not see all of.

    Imports it, as vLLM's engine process will. One that cannot be had is left to vLLM to tell.
    """
    try:
        problem = scheduler_problem(path)
    except (ImportError, AttributeError, ValueError):
        return
    if problem is not None:
        raise UnsupportedVllm(f"{problem}; {ADVICE}")


def _name(owner: type) -> str:
    return f"{owner.__module__}.{owner.__qualname__}"


def _passed_on(own: tuple[type, ...], bases: tuple[type, ...], method: str) -> bool:
    if not any(method in vars(owner) for owner in own):
        return True
    names = {"super", *(base.__name__ for base in bases)}
    return any(
        method in code.co_names and not names.isdisjoint(code.co_names)
        for owner in own
        for value in vars(owner).values()
        for code in _codes(value)
    )


def _codes(value: Any) -> Iterator[CodeType]:
    """The code of a function, below whatever wraps it, and of the functions inside it."""
    function = inspect.unwrap(getattr(value, "__func__", value))
    waiting: list[Any] = [getattr(function, "__code__", None)]
    while waiting:
        code = waiting.pop()
        if isinstance(code, CodeType):
            yield code
            waiting += code.co_consts
