"""The hello: each patched process says who it is and what is installed in it.

The bodies of the two hello hooks, and the frontend's side of asking. A process that does not answer
is reported as such, never assumed to be patched (design, decision 3).
"""

import os
import time
import weakref
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_patches import install
from nnrp_sched_patches.channel import call_engine
from nnrp_sched_patches.scheduler_fit import misfit
from nnrp_sched_patches.slot import ACTING, REPLACED

METHOD = "nnrp_hello"


class HelloReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What one vLLM process answered to the hello."""

    process: Literal["frontend", "engine"]
    answered: bool
    problem: str | None = None
    """Why there is no answer, why the layer is not active there, or what it does not see there."""
    pid: int | None = None
    vllm: str | None = None
    binding: str | None = None
    hooks: tuple[str, ...] = ()
    """Names of the hooks installed there; those of modules it never imports are not among them."""
    monotonic_ns: int | None = None
    """Its monotonic clock when it answered, with `wall_ns` the anchor for its timestamps."""
    wall_ns: int | None = None
    scheduler: tuple[str, ...] = ()
    """The scheduler's class and its bases; the config's flags do not tell (hooks-verified C6)."""
    batch_queue_size: int | None = None
    """Batches in flight at once; 2 means asynchronous scheduling."""
    step: str | None = None
    """Name of the engine's step function."""
    policy: str | None = None
    """The scheduling policy: `fcfs` or `priority`."""

    @property
    def patched(self) -> bool:
        """Whether the layer is certainly active in that process."""
        return self.answered and self.problem is None and self.binding is not None


_live: dict[int, "weakref.WeakSet[Any]"] = {}
"""Engines built in this process, by pid: a forked child must not count its parent's."""


def register_engine(engine: Any, _result: Any) -> None:
    """Body of hook F1: remember an AsyncLLM for as long as it lives."""
    _live.setdefault(os.getpid(), weakref.WeakSet()).add(engine)


def live_engines() -> list[Any]:
    """The AsyncLLM objects that were built in this process while the layer was active."""
    return list(_live.get(os.getpid(), ()))


def _about_this_process() -> dict[str, Any]:
    layer = install.status()
    acting = [hook.name for hook in layer.hooks if hook.state in ACTING]
    # Of an earlier activation one may be replaced that now is in its place again.
    replaced = [
        f"hook {hook.name} at {hook.place} is {hook.state}"
        for hook in layer.hooks
        if hook.state == REPLACED and hook.name not in acting
    ]
    return {
        "pid": os.getpid(),
        "vllm": layer.version,
        "binding": layer.binding,
        "hooks": acting,
        "problem": layer.problem or "; ".join(replaced) or None,
        "monotonic_ns": time.monotonic_ns(),
        "wall_ns": time.time_ns(),
    }


def engine_hello(self: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Body of hook E1.hello: `EngineCore.nnrp_hello`, in the engine process."""
    del payload
    scheduler = self.scheduler.__class__
    bases = scheduler.__mro__[:-1]
    policy = self.vllm_config.scheduler_config.policy
    about = _about_this_process()
    return {
        **about,
        "problem": about["problem"] or misfit(scheduler),
        "scheduler": [f"{base.__module__}.{base.__qualname__}" for base in bases],
        "batch_queue_size": self.batch_queue_size,
        "step": self.step_fn.__name__,
        "policy": str(getattr(policy, "value", policy)),
    }


def frontend_hello() -> HelloReceipt:
    """The receipt of this process."""
    return _receipt("frontend", _about_this_process())


async def hello_receipts(engine: Any, wait_s: float) -> list[HelloReceipt]:
    """The receipts of this process and of `engine`'s engine process, in that order.

    `engine` is an AsyncLLM; waits `wait_s` seconds. Never raises for a process without answer.
    """
    try:
        reply = await call_engine(engine, METHOD, {}, wait_s=wait_s)
        answer = _receipt("engine", reply)
    except (NnrpSchedError, msgspec.ValidationError) as error:
        answer = HelloReceipt(process="engine", answered=False, problem=str(error))
    return [frontend_hello(), answer]


def _receipt(process: Literal["frontend", "engine"], facts: Mapping[str, Any]) -> HelloReceipt:
    return msgspec.convert({**facts, "process": process, "answered": True}, HelloReceipt)
