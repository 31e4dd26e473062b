"""One hook in its slot of one of vLLM's classes: what stands there, and how it is undone.

Other tools wrap the same places. What lies below ours comes back when ours is taken out; what was
put above ours is never touched: then ours stays where it is, switched off.
"""

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

from nnrp_sched_patches.hook import Hook
from nnrp_sched_patches.hook_forms import ABSENT, Switch

INSTALLED = "installed"
COVERED = "installed, under another tool's wrapper"
REPLACED = "replaced: what is in its place now does not show whether it calls it"
WAITING = "waiting for vLLM to import the module"
LEFT = "left in place, switched off"
TURNED_OFF = "turned off after repeated failures"

ACTING = frozenset({INSTALLED, COVERED})
"""The states in which a hook certainly sees vLLM's calls."""

_CHAIN = ("__wrapped__", "_self_parent", "__func__", "func")
"""Where a wrapper shows what it calls: functools and wrapt, wrapt's bound forms, methods,
`partial`."""


class HookStatus(Struct, frozen=True):
    """Where one hook stands in this process."""

    name: str
    place: str
    """`module:qualified name` of its seam."""
    state: str
    """One of this module's constants."""
    failures: int = 0
    """How often its body raised; the calls it watched went on."""


class Slot:
    """A hook that was put into its place, and what was there before."""

    def __init__(self, hook: Hook, owner: Any, attribute: str) -> None:
        self.hook = hook
        self.owner = owner
        self.attribute = attribute
        self.raw = slots(owner).get(attribute, ABSENT)
        self.switch = Switch(hook.name)
        self.value: Any = None

    @property
    def _now(self) -> Any:
        return slots(self.owner).get(self.attribute, ABSENT)

    def put(self, value: Any) -> None:
        """Put our wrapper into the slot."""
        self.value = value
        setattr(self.owner, self.attribute, value)

    def take_out(self) -> bool:
        """Switch off, and restore what was there if ours is still on top.

        Tells whether ours is out; if not, another tool has something of its own in the slot.
        """
        self.switch.on = False
        if self._now is not self.value:
            return self._now is self.raw
        if self.raw is ABSENT:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.raw)
        return True

    @property
    def reachable(self) -> bool:
        """Whether a call through the slot certainly comes by here, under other tools' wrappers."""
        waiting: list[Any] = [self._now]
        seen: set[int] = set()
        while waiting:
            part = waiting.pop()
            if part is self.value:
                return True
            if part is None or id(part) in seen:
                continue
            seen.add(id(part))
            # A tool that read the slot through the class wrapped a bound form of ours.
            waiting += [getattr(part, name, None) for name in _CHAIN]
        return False

    def status(self, *, active: bool) -> HookStatus:
        """Where the hook stands; `active` says whether it is meant to act."""
        on_top = self._now is self.value
        if not on_top and not self.reachable:
            state = REPLACED
        elif not active:
            state = LEFT
        elif not self.switch.on:
            state = TURNED_OFF
        else:
            state = INSTALLED if on_top else COVERED
        return HookStatus(self.hook.name, str(self.hook.seam), state, self.switch.failures)


def slots(owner: Any) -> Mapping[str, Any]:
    """What a class or module itself holds, unbound: not what it inherits."""
    return cast(Mapping[str, Any], vars(owner))
