"""A stand-in for vLLM's modules: classes to hook, a binding over them, bodies that record."""

import sys
import types
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from nnrp_sched_patches.bindings import Binding, Family
from nnrp_sched_patches.hook import Hook, HookForm
from nnrp_sched_patches.seam import Seam, SeamKind

ENGINE = "toy_vllm_engine"
LATE = "toy_vllm_late"
BODIES = "toy_vllm_bodies"

_SOURCES = {
    ENGINE: """
class Base:
    def inherited(self, value):
        return ("inherited", value)

class Engine(Base):
    def __init__(self, value=0):
        self.value = value

    def step(self, amount):
        if amount < 0:
            raise ValueError("negative")
        self.value += amount
        return self.value

    @staticmethod
    def static(value):
        return ("static", value)

    @classmethod
    def named(cls, value):
        return (cls.__name__, value)
""",
    LATE: """
class Late:
    def arrive(self):
        return "here"
""",
}


def hook(place: str, form: HookForm = HookForm.AFTER, body: str = "record") -> Hook:
    """A hook at `module:name` with a body of the module `BODIES`."""
    module, _, name = place.partition(":")
    kind = SeamKind.ABSENT if form is HookForm.ADDED else SeamKind.FUNCTION
    return Hook(name=name, form=form, seam=Seam(module, name, kind), body=f"{BODIES}:{body}")


def binding(*hooks: Hook) -> Binding:
    """A binding that consists of just these hooks."""
    family = Family(
        name="toy", versions=">=1", tested=("1.0",), probes=(), hooks=hooks, relied_on=()
    )
    return Binding(version="1.0", family=family)


def _record(calls: list[Any]) -> Callable[[Any, Any], None]:
    def record(instance: Any, result: Any) -> None:
        calls.append((type(instance).__name__, result))

    return record


def _fail(_instance: Any, _result: Any) -> None:
    raise RuntimeError("the body broke")


def _hello(self: Any, payload: dict[str, Any]) -> dict[str, Any]:
    return {"value": self.value, **payload}


@contextmanager
def toy_modules() -> Generator[types.SimpleNamespace]:
    """The stand-ins in `sys.modules`, `LATE` not yet imported; `calls` is what `record` saw."""
    calls: list[Any] = []
    bodies: Any = types.ModuleType(BODIES)
    bodies.record, bodies.fail, bodies.hello = _record(calls), _fail, _hello
    engine: Any = types.ModuleType(ENGINE)
    namespace: dict[str, Any] = engine.__dict__
    exec(_SOURCES[ENGINE], namespace)
    sys.modules.update({BODIES: bodies, ENGINE: engine})
    try:
        yield types.SimpleNamespace(Engine=engine.Engine, Base=engine.Base, calls=calls)
    finally:
        for name in (BODIES, ENGINE, LATE):
            sys.modules.pop(name, None)


def late_source() -> str:
    """The text of the module `LATE`, to be put where it can be imported."""
    return _SOURCES[LATE]


def class_slots(owner: type) -> dict[str, int]:
    """The identity of every slot that a class itself holds."""
    return {name: id(value) for name, value in vars(owner).items()}
