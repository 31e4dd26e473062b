"""Puts the hooks of a binding into vLLM's classes, all or none, and takes them out again exactly.

Modules that vLLM has not imported yet get their hooks when it does. A forked child inherits the
patched classes and this module's state with them, and vLLM does not load the plugin there again
(hooks.md 1.5), so both go on together.
"""

import importlib
import logging
import os
import sys
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import Any, cast

import wrapt
from msgspec import Struct

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches.bindings import Binding, bind_installed
from nnrp_sched_patches.hook import Hook, HookForm
from nnrp_sched_patches.hook_forms import ABSENT, MAKERS, Switch

_LOGGER = logging.getLogger(__name__)

INSTALLED = "installed"
WAITING = "waiting for vLLM to import the module"
LEFT = "left in place, switched off"
TURNED_OFF = "turned off after repeated failures"


class HookStatus(Struct, frozen=True):
    """Where one hook stands in this process."""

    name: str
    place: str
    """`module:qualified name` of its seam."""
    state: str
    """`INSTALLED`, `WAITING`, `LEFT` or `TURNED_OFF`."""
    failures: int = 0
    """How often its body raised; the calls it watched went on."""


class LayerStatus(Struct, frozen=True):
    """The patch layer in this process."""

    active: bool
    pid: int
    version: str | None = None
    binding: str | None = None
    hooks: tuple[HookStatus, ...] = ()
    problem: str | None = None
    """Why the layer took itself out again: a hook did not fit a module imported later."""


class _Installed:
    """One hook in its slot, with what is needed to undo it."""

    def __init__(self, hook: Hook, owner: Any, attribute: str, raw: Any) -> None:
        self.hook = hook
        self.owner = owner
        self.attribute = attribute
        self.raw = raw
        self.switch = Switch(hook.name)
        self.value: Any = None

    def undo(self) -> bool:
        """Switch off, and restore the slot if ours is still on top; tells whether it was."""
        self.switch.on = False
        if slots(self.owner).get(self.attribute) is not self.value:
            return False
        if self.raw is ABSENT:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.raw)
        return True

    def status(self, state: str) -> HookStatus:
        """The hook in `state`, unless its failures turned it off."""
        shown = TURNED_OFF if state == INSTALLED and not self.switch.on else state
        return HookStatus(self.hook.name, str(self.hook.seam), shown, self.switch.failures)

    @property
    def reachable(self) -> bool:
        """Whether a call through the slot still comes by here, under another tool's wrapper."""
        waiting: list[Any] = [slots(self.owner).get(self.attribute)]
        seen: set[int] = set()
        while waiting:
            part = waiting.pop()
            if part is self.value:
                return True
            if part is None or id(part) in seen:
                continue
            seen.add(id(part))
            # A tool that read the slot through the class wrapped a bound form of ours.
            waiting += [getattr(part, name, None) for name in ("__wrapped__", "_self_parent")]
        return False


def slots(owner: Any) -> Mapping[str, Any]:
    """What a class or module itself holds, unbound: not what it inherits."""
    return cast(Mapping[str, Any], vars(owner))


class PatchLayer:
    """The hooks of one process. The process's own is behind this module's functions."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._binding: Binding | None = None
        self._installed: list[_Installed] = []
        self._left: list[_Installed] = []
        self._waiting: dict[str, list[Hook]] = {}
        # wrapt cannot take an import hook back, so each module gets one at most.
        self._watched: set[str] = set()
        self._problem: str | None = None

    def activate(self, binding: Binding) -> LayerStatus:
        """Install every hook of `binding`; without effect while the layer is active."""
        with self._here():
            if self._binding is not None:
                return self._status()
            self._problem = None
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
        """vLLM imported a module that may have hooks waiting; must not raise into that import."""
        with self._here():
            try:
                for hook in self._waiting.pop(module.__name__, ()):
                    self._install(hook, module)
            except Exception as error:
                self._problem = str(error)
                self._take_out()
                _LOGGER.error("the patch layer took itself out: %s", error)

    def _install(self, hook: Hook, module: ModuleType) -> None:
        owner, attribute = _owner(hook, module)
        for old in self._left:
            if old.owner is owner and old.attribute == attribute and old.reachable:
                # Ours from an earlier activation, under another tool's wrapper.
                self._left.remove(old)
                old.switch.revive()
                self._installed.append(old)
                return
        _check(hook, owner, attribute)
        entry = _Installed(hook, owner, attribute, slots(owner).get(attribute, ABSENT))
        body_module, _, body_name = hook.body.partition(":")
        body = getattr(importlib.import_module(body_module), body_name)
        inner = _inherited(owner, attribute) if entry.raw is ABSENT else entry.raw
        entry.value = MAKERS[hook.form](owner, inner, body, entry.switch)
        setattr(owner, attribute, entry.value)
        self._installed.append(entry)

    def _take_out(self) -> None:
        """Undo everything, newest first; what another tool covers stays, switched off."""
        self._binding = None
        self._waiting = {}
        while self._installed:
            entry = self._installed.pop()
            if not entry.undo():
                self._left.append(entry)
                _LOGGER.warning("hook %s %s at %s", entry.hook.name, LEFT, entry.hook.seam)

    def _status(self) -> LayerStatus:
        hooks = [entry.status(INSTALLED) for entry in self._installed]
        hooks += [
            HookStatus(name=hook.name, place=str(hook.seam), state=WAITING)
            for waiting in self._waiting.values()
            for hook in waiting
        ]
        hooks += [entry.status(LEFT) for entry in self._left]
        return LayerStatus(
            active=self._binding is not None,
            pid=self._pid,
            version=self._binding.version if self._binding else None,
            binding=self._binding.family.name if self._binding else None,
            hooks=tuple(hooks),
            problem=self._problem,
        )


_LAYER = PatchLayer()


def activate(binding: Binding | None = None) -> LayerStatus:
    """Install every hook of `binding`, or of the one for the installed vLLM; idempotent.

    Raises UnsupportedVllm when version, probes or a seam do not fit. Whatever it raises, nothing
    stays installed.
    """
    current = _LAYER.status()
    return current if current.active else _LAYER.activate(binding or bind_installed())


def deactivate() -> LayerStatus:
    """Take every hook out; the status tells what had to be left in place, switched off."""
    return _LAYER.deactivate()


def status() -> LayerStatus:
    """The layer in this process."""
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
    exists = hasattr(owner, attribute)
    if hook.form is HookForm.ADDED and exists:
        raise UnsupportedVllm(f"{hook.seam} exists already in the running vLLM")
    if hook.form is not HookForm.ADDED and not exists:
        raise UnsupportedVllm(f"{hook.seam} is missing in the running vLLM")


def _inherited(owner: Any, attribute: str) -> Any:
    """The raw slot of a base class: wrapping it leaves the base as it is."""
    for base in getattr(owner, "__mro__", ())[1:]:
        if attribute in slots(base):
            return slots(base)[attribute]
    return ABSENT
