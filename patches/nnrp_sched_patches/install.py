"""Puts the hooks of a binding into vLLM's classes, all or none, and takes them out again exactly.

`activate`, `deactivate` and `status` are this process's own and speak of no other: vLLM's processes
each load the plugin, which calls `activate` there. Modules that vLLM has not imported yet get their
hooks when it does. A forked child inherits the patched classes and this module's state with them,
and vLLM does not load the plugin there again (hooks.md 1.5), so both go on together. A spawned
child starts without either.

All that outlives `deactivate` is an import hook of wrapt's, which finds nothing to do any more:
taking it out of `sys.meta_path` could make another thread's import miss a finder.
"""

import importlib
import logging
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import wrapt
from msgspec import Struct

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches.bindings import Binding, bind_installed
from nnrp_sched_patches.hook import Hook, HookForm
from nnrp_sched_patches.hook_forms import MAKERS
from nnrp_sched_patches.slot import WAITING, HookStatus, Slot, slots

_LOGGER = logging.getLogger(__name__)


class LayerStatus(Struct, frozen=True):
    """The patch layer in this process."""

    active: bool
    pid: int
    version: str | None = None
    binding: str | None = None
    hooks: tuple[HookStatus, ...] = ()
    problem: str | None = None
    """Why the layer took itself out again: a hook did not fit a module imported later."""


class PatchLayer:
    """The hooks of one process. The process's own is behind this module's functions."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._binding: Binding | None = None
        self._installed: list[Slot] = []
        self._left: list[Slot] = []
        self._waiting: dict[str, list[Hook]] = {}
        # wrapt cannot take an import hook back, so each module gets one at most.
        self._watched: set[str] = set()
        self._problem: str | None = None
        self._strict = False
        self._holders = 0
        self._held_only = False
        """Whether nobody but the holders asked for the hooks that are in."""

    def activate(self, binding: Binding, *, strict: bool = False) -> LayerStatus:
        """Install every hook of `binding`; without effect while the layer is active.

        `strict` lets a hook that does not fit a module imported later fail that import.
        """
        with self._here():
            if self._binding is not None:
                self._held_only = False
                return self._status()
            self._problem, self._strict = None, strict
            self._tidy()
            try:
                for hook in binding.family.hooks:
                    module = sys.modules.get(hook.seam.module)
                    if module is None:
                        self._waiting.setdefault(hook.seam.module, []).append(hook)
                    else:
                        self._install(hook, module)
                self._binding = binding
                for name in list(self._waiting):
                    if name not in self._watched:
                        self._watched.add(name)
                        wrapt.register_post_import_hook(self._imported, name)
            except BaseException:
                self._take_out()
                raise
            return self._status()

    @contextmanager
    def held(self, binding: Binding) -> Generator[None]:
        """Active while the context is open; as `activated`."""
        with self._here():
            if self._binding is None:
                self.activate(binding)
                self._held_only = True
            self._holders += 1
        try:
            yield
        finally:
            with self._here():
                self._holders -= 1
                if self._held_only and not self._holders:
                    self._take_out()

    def deactivate(self) -> LayerStatus:
        """Take every hook out."""
        with self._here():
            self._take_out()
            return self._status()

    def status(self) -> LayerStatus:
        """What is installed, waiting, or left in place."""
        with self._here():
            return self._status()

    def _here(self) -> threading.RLock:
        """The lock of this process. A forked child has its parent's memory, classes included."""
        if self._pid != os.getpid():
            # Another thread of the parent may have held the old lock at the fork.
            self._pid, self._lock = os.getpid(), threading.RLock()
        return self._lock

    def _imported(self, module: ModuleType) -> None:
        """vLLM imported a module that may have hooks waiting; raises into that if strict only."""
        with self._here():
            try:
                for hook in self._waiting.pop(module.__name__, ()):
                    self._install(hook, module)
            except Exception as error:
                self._problem = str(error)
                self._take_out()
                _LOGGER.error("the patch layer took itself out: %s", error)
                if self._strict:
                    raise

    def _install(self, hook: Hook, module: ModuleType) -> None:
        owner, attribute = _owner(hook, module)
        for old in self._left:
            place = old.owner is owner and old.attribute == attribute
            if place and old.hook == hook and old.reachable:
                # Ours from an earlier activation, under another tool's wrapper.
                self._left.remove(old)
                old.switch.revive()
                self._installed.append(old)
                return
        _check(hook, owner, attribute)
        slot = Slot(hook, owner, attribute)
        body_module, _, body_name = hook.body.partition(":")
        body = getattr(importlib.import_module(body_module), body_name)
        slot.put(MAKERS[hook.form](owner, slot.raw, body, slot.switch))
        self._installed.append(slot)

    def _take_out(self) -> None:
        """Undo everything, newest first; what another tool covers stays, switched off."""
        self._binding = None
        self._held_only = False
        self._waiting = {}
        while self._installed:
            slot = self._installed.pop()
            if not slot.take_out():
                self._left.append(slot)
                told = slot.status(active=False)
                _LOGGER.warning("hook %s at %s: %s", told.name, told.place, told.state)
        self._tidy()

    def _tidy(self) -> None:
        """Take out what had to be left, where the other tool is gone by now."""
        self._left = [slot for slot in self._left if not slot.take_out()]

    def _status(self) -> LayerStatus:
        hooks = [slot.status(active=True) for slot in self._installed]
        hooks += [
            HookStatus(name=hook.name, place=str(hook.seam), state=WAITING)
            for waiting in self._waiting.values()
            for hook in waiting
        ]
        hooks += [slot.status(active=False) for slot in self._left]
        return LayerStatus(
            active=self._binding is not None,
            pid=self._pid,
            version=self._binding.version if self._binding else None,
            binding=self._binding.family.name if self._binding else None,
            hooks=tuple(hooks),
            problem=self._problem,
        )


_LAYER = PatchLayer()


def activate(binding: Binding | None = None, *, strict: bool = False) -> LayerStatus:
    """Install every hook in this process's vLLM, or none; tells what is installed then.

    Of `binding`, or of the one for the installed vLLM, whose source is checked first. Without
    effect while the layer is active, whatever the binding. Raises UnsupportedVllm when version,
    probes or a seam do not fit, and whatever it raises, nothing stays installed. A module that vLLM
    imports later and that does not fit takes every hook out again; `status` says why, and with
    `strict` the import fails.
    """
    current = _LAYER.status()
    if current.active:
        return current
    return _LAYER.activate(binding or bind_installed(), strict=strict)


@contextmanager
def activated(binding: Binding) -> Generator[None]:
    """Have the hooks in while the context is open.

    Of several such contexts the last one to be left takes them out, and none does where `activate`
    was called besides. Raises as `activate` does.
    """
    with _LAYER.held(binding):
        yield


def deactivate() -> LayerStatus:
    """Take every hook out of this process's vLLM; without effect while none is in.

    Each slot holds the very object again that it held before. A slot into which another tool put
    something since is not touched: our hook there is switched off, which the returned status says,
    and is taken out by a later call once that tool is gone.
    """
    return _LAYER.deactivate()


def status() -> LayerStatus:
    """The layer in this process, looked up now: other tools may have changed the slots since."""
    return _LAYER.status()


def _owner(hook: Hook, module: ModuleType) -> tuple[Any, str]:
    *path, attribute = hook.seam.name.split(".")
    owner: Any = module
    for part in path:
        if part not in slots(owner):
            raise UnsupportedVllm(f"{hook.seam} is missing in the running vLLM")
        owner = slots(owner)[part]
    return owner, attribute


def _check(hook: Hook, owner: Any, attribute: str) -> None:
    """What the source check cannot see: a module that something changed since it was imported."""
    if hook.form is HookForm.ADDED:
        if hasattr(owner, attribute):
            raise UnsupportedVllm(f"{hook.seam} exists already in the running vLLM")
    elif attribute not in slots(owner):
        # What it inherits instead (`__init__` always is) is not what the source showed.
        raise UnsupportedVllm(f"{hook.seam} is missing in the running vLLM")
