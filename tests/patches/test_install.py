"""Installing hooks all or none, and undoing them exactly."""

import functools
import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches.hook import HookForm
from nnrp_sched_patches.hook_forms import MAX_FAILURES
from nnrp_sched_patches.install import INSTALLED, LEFT, TURNED_OFF, WAITING, PatchLayer, slots
from tests.support.toy_vllm import (
    BODIES,
    ENGINE,
    LATE,
    binding,
    class_slots,
    hook,
    late_source,
)

STEP = f"{ENGINE}:Engine.step"
HELLO = f"{ENGINE}:Engine.nnrp_hello"
ARRIVE = f"{LATE}:Late.arrive"
EVERY_KIND = (
    hook(f"{ENGINE}:Engine.__init__"),
    hook(STEP),
    hook(f"{ENGINE}:Engine.static"),
    hook(f"{ENGINE}:Engine.named"),
    hook(f"{ENGINE}:Engine.inherited"),
    hook(HELLO, HookForm.ADDED, "hello"),
)


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the module `LATE` importable."""
    (tmp_path / f"{LATE}.py").write_text(late_source())
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def _states(layer: PatchLayer) -> dict[str, str]:
    return {status.name: status.state for status in layer.status().hooks}


def test_hooks_see_the_calls_and_change_none(toy: types.SimpleNamespace, layer: PatchLayer) -> None:
    status = layer.activate(binding(*EVERY_KIND))
    engine = toy.Engine(5)
    results = [
        engine.step(2),
        engine.inherited(1),
        toy.Engine.static(3),
        toy.Engine.named(4),
        engine.nnrp_hello({"asked": True}),
    ]
    assert results == [
        7,
        ("inherited", 1),
        ("static", 3),
        ("Engine", 4),
        {"value": 7, "asked": True},
    ]
    assert toy.calls == [
        ("Engine", None),
        ("Engine", 7),
        ("Engine", ("inherited", 1)),
        ("NoneType", ("static", 3)),
        ("type", ("Engine", 4)),
    ]
    assert status.active
    assert {state for state in _states(layer).values()} == {INSTALLED}


def test_deactivate_restores_every_slot_by_identity(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    before = class_slots(toy.Engine), class_slots(toy.Base)
    layer.activate(binding(*EVERY_KIND))
    assert class_slots(toy.Engine) != before[0]
    assert class_slots(toy.Base) == before[1]
    status = layer.deactivate()
    assert (class_slots(toy.Engine), class_slots(toy.Base)) == before
    assert not status.active
    assert status.hooks == ()


def test_activating_twice_installs_once(toy: types.SimpleNamespace, layer: PatchLayer) -> None:
    layer.activate(binding(hook(STEP)))
    slots = class_slots(toy.Engine)
    layer.activate(binding(hook(STEP)))
    toy.Engine().step(1)
    assert class_slots(toy.Engine) == slots
    assert toy.calls == [("Engine", 1)]


def test_the_layer_can_be_activated_again_after_it_was_out(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    for _ in range(3):
        layer.activate(binding(hook(STEP)))
        layer.deactivate()
    layer.activate(binding(hook(STEP)))
    toy.Engine().step(1)
    assert toy.calls == [("Engine", 1)]


@pytest.mark.parametrize(
    "misfit",
    [
        hook(f"{ENGINE}:Engine.renamed"),
        hook(f"{ENGINE}:Lost.step"),
        hook(f"{ENGINE}:Engine.step", HookForm.ADDED, "hello"),
        hook(f"{ENGINE}:Engine.inherited", HookForm.ADDED, "hello"),
    ],
    ids=lambda misfit: f"{misfit.form} {misfit.seam}",
)
def test_a_hook_that_does_not_fit_leaves_none_installed(
    toy: types.SimpleNamespace, layer: PatchLayer, misfit: Any
) -> None:
    before = class_slots(toy.Engine)
    with pytest.raises(UnsupportedVllm, match=str(misfit.seam)):
        layer.activate(binding(*EVERY_KIND[:2], misfit, *EVERY_KIND[2:]))
    assert class_slots(toy.Engine) == before
    assert layer.status().hooks == ()
    assert not layer.status().active


def test_a_failure_of_any_sort_in_the_middle_leaves_none_installed(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    before = class_slots(toy.Engine)
    with pytest.raises(AttributeError, match="no_such_body"):
        layer.activate(
            binding(*EVERY_KIND[:3], hook(f"{ENGINE}:Engine.named", body="no_such_body"))
        )
    assert class_slots(toy.Engine) == before


def _step(toy: types.SimpleNamespace, through_the_class: bool) -> Any:
    """Our wrapper as another tool finds it: bound by the class, or raw."""
    return toy.Engine.step if through_the_class else slots(toy.Engine)["step"]


def _foreign(wrapped: Any, seen: list[Any]) -> Any:
    @functools.wraps(wrapped)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        seen.append("foreign")
        return wrapped(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("read_through_the_class", [True, False])
def test_under_another_tools_wrapper_ours_stays_switched_off_and_says_so(
    toy: types.SimpleNamespace, layer: PatchLayer, read_through_the_class: bool
) -> None:
    layer.activate(binding(hook(STEP)))
    seen: list[Any] = []
    ours = _step(toy, read_through_the_class)
    toy.Engine.step = theirs = _foreign(ours, seen)
    status = layer.deactivate()
    assert slots(toy.Engine)["step"] is theirs
    assert [hook_status.state for hook_status in status.hooks] == [LEFT]
    assert toy.Engine(1).step(1) == 2
    assert (seen, toy.calls) == (["foreign"], [])


@pytest.mark.parametrize("read_through_the_class", [True, False])
def test_a_hook_left_in_place_is_switched_on_again_and_not_doubled(
    toy: types.SimpleNamespace, layer: PatchLayer, read_through_the_class: bool
) -> None:
    layer.activate(binding(hook(STEP)))
    ours = _step(toy, read_through_the_class)
    toy.Engine.step = _foreign(ours, [])
    layer.deactivate()
    layer.activate(binding(hook(STEP)))
    toy.Engine().step(1)
    assert toy.calls == [("Engine", 1)]
    assert _states(layer) == {"Engine.step": INSTALLED}


def test_when_the_other_tool_threw_our_wrapper_away_a_new_one_is_installed(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    raw = slots(toy.Engine)["step"]
    layer.activate(binding(hook(STEP)))
    toy.Engine.step = _foreign(slots(toy.Engine)["step"], [])
    layer.deactivate()
    toy.Engine.step = raw
    layer.activate(binding(hook(STEP)))
    toy.Engine().step(1)
    assert toy.calls == [("Engine", 1)]


def test_a_wrapper_that_was_there_before_ours_is_restored(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    toy.Engine.step = theirs = _foreign(slots(toy.Engine)["step"], [])
    layer.activate(binding(hook(STEP)))
    layer.deactivate()
    assert slots(toy.Engine)["step"] is theirs


def test_a_module_imported_later_gets_its_hooks_then(
    toy: types.SimpleNamespace, layer: PatchLayer, late: None
) -> None:
    layer.activate(binding(hook(STEP), hook(ARRIVE)))
    assert _states(layer) == {"Engine.step": INSTALLED, "Late.arrive": WAITING}
    module = importlib.import_module(LATE)
    assert module.Late().arrive() == "here"
    assert toy.calls == [("Late", "here")]
    assert _states(layer) == {"Engine.step": INSTALLED, "Late.arrive": INSTALLED}


def test_a_module_imported_after_deactivation_is_left_alone(
    toy: types.SimpleNamespace, layer: PatchLayer, late: None
) -> None:
    layer.activate(binding(hook(ARRIVE)))
    layer.deactivate()
    module = importlib.import_module(LATE)
    assert type(slots(module.Late)["arrive"]) is types.FunctionType


def test_a_later_module_that_does_not_fit_takes_every_hook_out_and_imports_fine(
    toy: types.SimpleNamespace, layer: PatchLayer, late: None
) -> None:
    before = class_slots(toy.Engine)
    layer.activate(binding(*EVERY_KIND, hook(f"{LATE}:Late.renamed")))
    module = importlib.import_module(LATE)
    status = layer.status()
    assert module.Late().arrive() == "here"
    assert class_slots(toy.Engine) == before
    assert not status.active
    assert status.problem is not None
    assert f"{LATE}:Late.renamed" in status.problem


def test_what_the_watched_method_raises_passes_unchanged(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    layer.activate(binding(hook(STEP)))
    with pytest.raises(ValueError, match="negative"):
        toy.Engine().step(-1)
    assert toy.calls == []


def test_a_body_that_keeps_failing_is_turned_off_and_never_reaches_the_caller(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    layer.activate(binding(hook(STEP, body="fail")))
    engine = toy.Engine()
    assert [engine.step(1) for _ in range(MAX_FAILURES + 5)][-1] == MAX_FAILURES + 5
    (status,) = layer.status().hooks
    assert (status.state, status.failures) == (TURNED_OFF, MAX_FAILURES)


def test_a_forked_child_has_the_hooks_and_can_undo_them_for_itself(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    before = class_slots(toy.Engine)
    layer.activate(binding(hook(STEP)))
    patched = class_slots(toy.Engine)
    child = os.fork()
    if child == 0:
        # No assertion in here: the child must not come back into pytest.
        inherited = layer.status()
        toy.Engine().step(1)
        fine = (
            inherited.active
            and inherited.pid == os.getpid()
            and toy.calls == [("Engine", 1)]
            and not layer.deactivate().active
            and class_slots(toy.Engine) == before
        )
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert class_slots(toy.Engine) == patched
    assert layer.status().active


def test_the_body_module_is_not_needed_before_a_hook_is_installed(
    toy: types.SimpleNamespace, layer: PatchLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, BODIES)
    assert layer.activate(binding(hook(ARRIVE))).active
