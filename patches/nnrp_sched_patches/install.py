"""Puts the hooks of a binding into vLLM's classes, all or none, and takes them out again exactly.

The state belongs to one process: a forked child inherits the patched classes and this module's
state with them, and goes on with its own copy (hooks.md 1.5). Modules that vLLM has not imported
yet get their hooks when it does.
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
from nnrp_sched_patches.bindings import Binding, Hook, HookForm, bind_installed
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


class _Layer:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.binding: Binding | None = None
        self.installed: list[_Installed] = []
        self.left: list[_Installed] = []
        self.waiting: dict[str, list[Hook]] = {}
        self.problem: str | None = None

    @property
    def active(self) -> bool:
        return self.binding is not None

    def after_fork(self) -> "_Layer":
        """The child's own state: same hooks, same classes, another process."""
        child = _Layer()
        child.binding = self.binding
        child.installed, child.left = list(self.installed), list(self.left)
        child.waiting = {module: list(hooks) for module, hooks in self.waiting.items()}
        child.problem = self.problem
        return child

    def install(self, hook: Hook, module: ModuleType) -> None:
        owner, attribute = _owner(hook, module)
        for old in self.left:
            if old.owner is owner and old.attribute == attribute and old.reachable:
                self.left.remove(old)
                old.switch.revive()
                self.installed.append(old)
                return
        raw = slots(owner).get(attribute, ABSENT)
        _check(hook, owner, attribute)
        entry = _Installed(hook, owner, attribute, raw)
        body_module, _, body_name = hook.body.partition(":")
        body = getattr(importlib.import_module(body_module), body_name)
        inner = _inherited(owner, attribute) if raw is ABSENT else raw
        entry.value = MAKERS[hook.form](inner, body, entry.switch)
        setattr(owner, attribute, entry.value)
        self.installed.append(entry)

    def take_out(self) -> None:
        """Undo everything, newest first; what another tool covers stays, switched off."""
        self.binding = None
        self.waiting = {}
        while self.installed:
            entry = self.installed.pop()
            if not entry.undo():
                self.left.append(entry)
                _LOGGER.warning("hook %s %s at %s", entry.hook.name, LEFT, entry.hook.seam)

    def status(self) -> LayerStatus:
        hooks = [_status(entry, INSTALLED) for entry in self.installed]
        hooks += [
            HookStatus(name=hook.name, place=str(hook.seam), state=WAITING)
            for waiting in self.waiting.values()
            for hook in waiting
        ]
        hooks += [_status(entry, LEFT) for entry in self.left]
        return LayerStatus(
            active=self.active,
            pid=self.pid,
            version=self.binding.version if self.binding else None,
            binding=self.binding.family.name if self.binding else None,
            hooks=tuple(hooks),
            problem=self.problem,
        )


_layer = _Layer()
_watched_modules: set[str] = set()
"""Modules with an import hook of ours: wrapt cannot take one back, so each gets one at most."""


def _current() -> _Layer:
    global _layer
    if _layer.pid != os.getpid():
        _layer = _layer.after_fork()
    return _layer


def activate(binding: Binding | None = None) -> LayerStatus:
    """Install every hook of `binding`, or of the one for the installed vLLM; idempotent.

    Raises UnsupportedVllm when version, probes or a seam do not fit. Whatever it raises, nothing
    stays installed.
    """
    layer = _current()
    with layer.lock:
        if layer.active:
            return layer.status()
        chosen = binding or bind_installed()
        layer.problem = None
        try:
            for hook in chosen.family.hooks:
                module = sys.modules.get(hook.seam.module)
                if module is None:
                    layer.waiting.setdefault(hook.seam.module, []).append(hook)
                else:
                    layer.install(hook, module)
            layer.binding = chosen
            for name in layer.waiting:
                _watch(name)
        except BaseException:
            layer.take_out()
            raise
        return layer.status()


def deactivate() -> LayerStatus:
    """Take every hook out; the status tells what had to be left in place, switched off."""
    layer = _current()
    with layer.lock:
        layer.take_out()
        return layer.status()


def status() -> LayerStatus:
    """The layer in this process."""
    layer = _current()
    with layer.lock:
        return layer.status()


def _watch(name: str) -> None:
    if name not in _watched_modules:
        _watched_modules.add(name)
        wrapt.register_post_import_hook(_imported, name)


def _imported(module: ModuleType) -> None:
    """vLLM imported a module that may have hooks waiting; must not raise into that import."""
    layer = _current()
    with layer.lock:
        try:
            for hook in layer.waiting.pop(module.__name__, ()):
                layer.install(hook, module)
        except Exception as error:
            layer.problem = str(error)
            layer.take_out()
            _LOGGER.error("the patch layer took itself out: %s", error)


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


def _status(entry: _Installed, state: str) -> HookStatus:
    shown = TURNED_OFF if state == INSTALLED and not entry.switch.on else state
    return HookStatus(entry.hook.name, str(entry.hook.seam), shown, entry.switch.failures)
