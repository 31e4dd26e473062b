"""Stand-ins for the classes that a family's hooks sit in, where vLLM's own would be."""

import sys
import types
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from nnrp_sched_patches.bindings import Family
from nnrp_sched_patches.hook import Hook, HookForm
from nnrp_sched_patches.seam import SeamKind
from tests.support.toy_vllm import class_slots

ANSWER = "vLLM's answer"


class HostFailed(Exception):
    """What a method of vLLM's raises."""


class Hosts:
    """The stand-ins of one family."""

    def __init__(self, family: Family) -> None:
        self.modules: dict[str, types.ModuleType] = {}
        for hook in family.hooks:
            seam = hook.seam
            module = self.modules.setdefault(seam.module, types.ModuleType(seam.module))
            owner_name, _, name = seam.name.rpartition(".")
            if owner_name not in vars(module):
                setattr(module, owner_name, type(owner_name, (), {}))
            if hook.form is not HookForm.ADDED:
                setattr(self.owner(hook), name, _method(seam.kind))
        self._before = self._slots()

    def owner(self, hook: Hook) -> Any:
        """The class that a hook sits in."""
        return vars(self.modules[hook.seam.module])[hook.seam.name.rpartition(".")[0]]

    def without_member(self, hook: Hook) -> None:
        """Take away what the hook sits at, or put something there where nothing may be."""
        owner, name = self.owner(hook), hook.seam.name.rpartition(".")[2]
        if hook.form is HookForm.ADDED:
            setattr(owner, name, _method(SeamKind.FUNCTION))
        else:
            delattr(owner, name)
        self._before = self._slots()

    def without_class(self, hook: Hook) -> None:
        """Take away the class that the hook sits in."""
        module = self.modules[hook.seam.module]
        delattr(module, hook.seam.name.rpartition(".")[0])
        self._before = self._slots()

    def untouched(self) -> bool:
        """Whether every slot of every class holds what it held, by identity."""
        return self._slots() == self._before

    def _slots(self) -> dict[tuple[str, str], dict[str, int]]:
        return {
            (module.__name__, name): class_slots(owner)
            for module in self.modules.values()
            for name, owner in vars(module).items()
            if isinstance(owner, type)
        }


def _method(kind: SeamKind) -> Callable[..., Any]:
    """A method that gives its argument back with `ANSWER`, or raises it when it is HostFailed."""

    def told(argument: Any) -> Any:
        if argument is HostFailed:
            raise HostFailed
        return None if argument is None else (ANSWER, argument)

    def method(self: Any, argument: Any = None) -> Any:
        del self
        return told(argument)

    async def coroutine(self: Any, argument: Any = None) -> Any:
        del self
        return told(argument)

    return coroutine if kind is SeamKind.ASYNC_FUNCTION else method


@contextmanager
def hosts(family: Family) -> Generator[Hosts]:
    """The stand-ins in `sys.modules`; what was there comes back."""
    made = Hosts(family)
    before = {name: sys.modules.get(name) for name in made.modules}
    sys.modules.update(made.modules)
    try:
        yield made
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
