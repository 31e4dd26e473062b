"""Which scheduler classes the hooks see all of, over a stand-in for vLLM's own."""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import wrapt

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches.engine_hooks import SCHEDULER, WATCHED
from nnrp_sched_patches.scheduler_fit import check_scheduler_class, misfit
from tests.support.toy_vllm import class_slots


class Scheduler:
    """As far as the check looks at vLLM's."""

    def add_request(self, request: Any) -> None: ...
    def schedule(self, throttle_prefills: bool = False) -> Any: ...
    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any: ...
    def _free_request(self, request: Any) -> Any: ...


Scheduler.__module__, _, Scheduler.__qualname__ = SCHEDULER.rpartition(".")


class AsyncScheduler(Scheduler):
    """Inherits what is hooked, as vLLM's."""

    def _update_after_schedule(self) -> None: ...


class BySuper(AsyncScheduler):
    def add_request(self, request: Any) -> None:
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return super().schedule(throttle_prefills)


class ByName(AsyncScheduler):
    def schedule(self, throttle_prefills: bool = False) -> Any:
        return Scheduler.schedule(self, throttle_prefills)


class ByHelper(AsyncScheduler):
    def schedule(self, throttle_prefills: bool = False) -> Any:
        return self._ordered(throttle_prefills)

    def _ordered(self, throttle_prefills: bool) -> Any:
        return [super(ByHelper, self).schedule(flag) for flag in [throttle_prefills]]


class Mixed(BySuper, ByName):
    pass


def _counted(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return wrapper


class Decorated(AsyncScheduler):
    @_counted
    def schedule(self, throttle_prefills: bool = False) -> Any:
        return super().schedule(throttle_prefills)


def _passing(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs)


_WRAPPED = wrapt.FunctionWrapper(vars(BySuper)["schedule"], _passing)
ByWrapt = type("ByWrapt", (BySuper,), {"schedule": _WRAPPED})


@pytest.mark.parametrize(
    "scheduler",
    [Scheduler, AsyncScheduler, BySuper, ByName, ByHelper, Mixed, Decorated, ByWrapt],
    ids=lambda scheduler: scheduler.__name__,
)
def test_a_scheduler_that_calls_vllms_fits(scheduler: type) -> None:
    assert misfit(scheduler) is None


class Own:
    def schedule(self) -> Any: ...


def test_a_scheduler_of_its_own_is_named_with_all_that_would_go_unseen() -> None:
    problem = misfit(Own)
    assert problem is not None
    assert f"{Own.__module__}.Own is not derived from {SCHEDULER}" in problem
    for lost in ("delay and position", "preempted", "aborts", "ends"):
        assert lost in problem


@pytest.mark.parametrize("method", WATCHED)
def test_a_method_that_replaces_vllms_without_calling_it_is_named(method: str) -> None:
    def replaced(self: Any, *args: Any) -> None: ...

    def unrelated(self: Any) -> None:
        # Its own one, not vLLM's.
        getattr(self, method)()

    members = {method: replaced, "other": unrelated}
    problem = misfit(type("Replacing", (AsyncScheduler,), members))
    assert problem is not None
    assert f"Replacing does not call vLLM's {method} from its own" in problem


class Ends(AsyncScheduler):
    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        for request in request_ids:
            self._free_request(request)

    def _free_request(self, request: Any) -> None: ...


def test_calling_ones_own_replacement_is_not_calling_vllms() -> None:
    assert "finish_requests, _free_request" in (misfit(Ends) or "")


def test_a_class_that_the_hooks_would_not_see_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("their_scheduler")
    vars(module).update(Own=Own, BySuper=BySuper, text="no class")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before = class_slots(Own)
    with pytest.raises(UnsupportedVllm) as refusal:
        check_scheduler_class("their_scheduler.Own")
    assert "Own is not derived from" in str(refusal.value)
    assert "run without --patch-vllm" in str(refusal.value)
    assert class_slots(Own) == before
    check_scheduler_class("their_scheduler.BySuper")


@pytest.mark.parametrize("path", ["no_such.Thing", "their", "", "sys.no_such", "sys.path"])
def test_what_is_no_class_is_left_to_vllm_to_tell(path: str) -> None:
    check_scheduler_class(path)
