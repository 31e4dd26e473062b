"""The layer is each process's own: forked and spawned children, several at once."""

import multiprocessing
import os
import types
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from nnrp_sched_patches import install, plugin
from nnrp_sched_patches.bindings import FAMILIES, Family
from nnrp_sched_patches.install import PatchLayer
from nnrp_sched_patches.slot import INSTALLED, WAITING
from tests.support.child_processes import as_vllm_process
from tests.support.toy_vllm import ENGINE, binding, class_slots, hook
from tests.support.vllm_source import write_source

STEP = f"{ENGINE}:Engine.step"
SECONDS = 40


def _heard(connection: Connection) -> Any:
    """The next message, which must come in time."""
    assert connection.poll(SECONDS), "the child did not answer"
    return connection.recv()


def _forked(layer: PatchLayer, toy: types.SimpleNamespace, before: Any, told: Connection) -> None:
    inherited = layer.status()
    toy.Engine().step(1)
    seen = list(toy.calls)
    again = layer.activate(binding(hook(STEP)))
    out = layer.deactivate()
    told.send(
        {
            "inherited": (inherited.active, inherited.pid == os.getpid()),
            "states": [one.state for one in inherited.hooks],
            "seen": seen,
            "activated again": again == inherited,
            "out": (out.active, out.hooks),
            "restored": class_slots(toy.Engine) == before,
        }
    )


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_the_hooks_says_so_and_undoes_them_for_itself(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    before = class_slots(toy.Engine)
    layer.activate(binding(hook(STEP)))
    patched = class_slots(toy.Engine)
    context = multiprocessing.get_context("fork")
    heard, told = context.Pipe(duplex=False)
    child = context.Process(target=_forked, args=(layer, toy, before, told))
    child.start()
    answer = _heard(heard)
    child.join(SECONDS)
    assert child.exitcode == 0
    assert answer == {
        "inherited": (True, True),
        "states": [INSTALLED],
        "seen": [("Engine", 1)],
        "activated again": True,
        "out": (False, ()),
        "restored": True,
    }
    assert class_slots(toy.Engine) == patched, "the parent's own stay"
    assert layer.status().active
    assert toy.calls == []


class Child:
    """A spawned child over a stand-in vLLM."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._heard, told = context.Pipe(duplex=False)
        orders, self._orders = context.Pipe(duplex=False)
        self.process = context.Process(target=as_vllm_process, args=(told, folder, orders))
        self.process.start()
        for end in (told, orders):
            # The child has its own: when it dies, reading here ends.
            end.close()

    def heard(self) -> dict[str, Any]:
        """Its next report, which must be of itself."""
        report: dict[str, Any] = _heard(self._heard)
        assert report.pop("pid") == (self.process.pid, self.process.pid)
        return report

    def after(self, order: str) -> dict[str, Any]:
        """Its report after an order."""
        self._orders.send(order)
        return self.heard()

    @contextmanager
    def ended(self) -> Generator[None]:
        """On leaving, its end, which must be a good one."""
        try:
            yield
            self._orders.send("end")
            self.process.join(SECONDS)
            assert self.process.exitcode == 0
        finally:
            self.process.kill()
            self.process.join(SECONDS)


def _stand_in(folder: Path, family: Family) -> Path:
    root = write_source(folder / "vllm", family.seams)
    version = family.versions.partition(",")[0].removeprefix(">=")
    (root / "_version.py").write_text(f'__version__ = "{version}.0"\n')
    return folder


NOTHING: dict[str, Any] = {"active": False, "binding": None, "hooks": {}}


@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[-1]], ids=lambda family: family.name)
def test_each_spawned_process_is_patched_for_itself_when_vllm_loads_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Family
) -> None:
    monkeypatch.setenv(plugin.PATCH_VARIABLE, "1")
    folder = _stand_in(tmp_path, family)
    before = install.status()
    # As vLLM's API servers, which are always spawned.
    children = [Child(folder) for _ in range(2)]
    places = {str(one.seam) for one in family.hooks}
    with ExitStack() as stack:
        for child in children:
            stack.enter_context(child.ended())
        for child in children:
            assert child.heard() == NOTHING, "a spawned child inherits nothing"
            loaded = child.heard()
            assert loaded["active"]
            assert loaded["binding"] == family.name
            assert loaded["hooks"] == dict.fromkeys(places, WAITING)
            assert child.heard()["hooks"] == dict.fromkeys(places, INSTALLED)
        first, second = children
        assert first.after("deactivate") == NOTHING
        assert second.after("status")["hooks"] == dict.fromkeys(places, INSTALLED)
    assert install.status() == before, "and the parent's stays as it was"


def test_a_spawned_process_without_the_variable_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    monkeypatch.delenv(plugin.PATCH_VARIABLE, raising=False)
    layer.activate(binding(hook(STEP)))
    child = Child(_stand_in(tmp_path, FAMILIES[-1]))
    with child.ended():
        assert [child.heard() for _ in range(3)] == [NOTHING] * 3
    assert layer.status().active
