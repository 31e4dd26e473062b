"""Installing hooks all or none, and undoing them exactly."""

import importlib
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches.hook import HookForm
from nnrp_sched_patches.hook_forms import MAX_FAILURES
from nnrp_sched_patches.install import PatchLayer
from nnrp_sched_patches.slot import INSTALLED, TURNED_OFF, WAITING, slots
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
        toy.Engine.static(3),
        toy.Engine.named(4),
        engine.nnrp_hello({"asked": True}),
    ]
    assert results == [
        7,
        ("static", 3),
        ("Engine", 4),
        {"value": 7, "asked": True},
    ]
    assert toy.calls == [
        ("Engine", None),
        ("Engine", 7),
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


def test_activating_twice_installs_once_whatever_the_second_asks_for(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    before = class_slots(toy.Engine)
    first = layer.activate(binding(hook(STEP)))
    patched = class_slots(toy.Engine)
    for again in (binding(hook(STEP)), binding(*EVERY_KIND)):
        assert layer.activate(again) == first
    toy.Engine().step(1)
    assert class_slots(toy.Engine) == patched
    assert toy.calls == [("Engine", 1)]
    layer.deactivate()
    assert class_slots(toy.Engine) == before


def test_activating_in_many_threads_at_once_installs_once(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    before = class_slots(toy.Engine)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(layer.activate, [binding(*EVERY_KIND)] * 32))
    assert found == [layer.status()] * 32
    toy.Engine().step(1)
    assert toy.calls == [("Engine", None), ("Engine", 1)]
    layer.deactivate()
    assert class_slots(toy.Engine) == before


def test_of_two_who_hold_it_active_the_last_one_takes_the_hooks_out(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    before = class_slots(toy.Engine)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(layer.held(binding(hook(STEP))))
        second.enter_context(layer.held(binding(hook(STEP))))
        first.close()
        assert layer.status().active
        second.close()
        assert not layer.status().active
    assert class_slots(toy.Engine) == before


@pytest.mark.parametrize("activated_first", [True, False])
def test_who_holds_it_active_leaves_alone_what_somebody_else_activated(
    toy: types.SimpleNamespace, layer: PatchLayer, activated_first: bool
) -> None:
    if activated_first:
        layer.activate(binding(hook(STEP)))
    with layer.held(binding(hook(STEP))):
        layer.activate(binding(hook(STEP)))
    assert layer.status().active
    layer.deactivate()
    with layer.held(binding(hook(STEP))):
        layer.deactivate()
        assert not layer.status().active
    assert not layer.status().active


def test_deactivating_twice_or_unasked_changes_nothing(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    before = class_slots(toy.Engine)
    assert not layer.deactivate().active
    layer.activate(binding(*EVERY_KIND))
    assert layer.deactivate() == layer.deactivate()
    assert class_slots(toy.Engine) == before


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
        # The base class has it: not what a table's row says.
        hook(f"{ENGINE}:Engine.inherited"),
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


def test_in_strict_mode_a_later_module_that_does_not_fit_cannot_be_imported(
    toy: types.SimpleNamespace, layer: PatchLayer, late: None
) -> None:
    before = class_slots(toy.Engine)
    layer.activate(binding(*EVERY_KIND, hook(f"{LATE}:Late.renamed")), strict=True)
    with pytest.raises(UnsupportedVllm, match=r"Late\.renamed"):
        importlib.import_module(LATE)
    assert class_slots(toy.Engine) == before
    assert not layer.status().active


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


def test_the_body_module_is_not_needed_before_a_hook_is_installed(
    toy: types.SimpleNamespace, layer: PatchLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, BODIES)
    assert layer.activate(binding(hook(ARRIVE))).active
