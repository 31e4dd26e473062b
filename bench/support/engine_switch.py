"""Switches the patch layer on and off inside a running vLLM, in both its processes, and times it.

Everything is really taken out and put in again: attributes of vLLM's classes hold vLLM's own
functions while it is off. Into the engine process this comes as a vLLM plugin of its own, from a
folder on the path that lives as long as the measurement.
"""

import functools
import inspect
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import wrapt

from nnrp_sched_patches import install
from nnrp_sched_patches.bindings import Binding, bind_installed
from nnrp_sched_patches.channel import call_engine

METHOD: Final = "bench_switch"
_PLUGIN: Final = {
    "METADATA": "Metadata-Version: 2.1\nName: nnrp-bench\nVersion: 0\n",
    "entry_points.txt": f"[vllm.general_plugins]\nnnrp_bench = {__name__}:load\n",
}
_SCHEDULER: Final = "vllm.v1.core.sched.scheduler:Scheduler"
_PROCESSOR: Final = "vllm.v1.engine.output_processor:OutputProcessor"
IN_ENGINE: Final = {
    "step": (f"{_SCHEDULER}.schedule",),
    "request": tuple(
        f"{_SCHEDULER}.{name}" for name in ("add_request", "finish_requests", "_free_request")
    ),
}
IN_FRONTEND: Final = {
    "step": (f"{_PROCESSOR}.process_outputs",),
    "request": (
        "vllm.v1.engine.async_llm:AsyncLLM.add_request",
        f"{_PROCESSOR}.add_request",
        f"{_PROCESSOR}.abort_requests",
    ),
}
POLL: Final = "vllm.v1.engine.core:EngineCore.nnrp_poll"

Cost = tuple[int, int]
"""How often hooks ran, and the nanoseconds they took altogether."""


class Clock:
    """Adds up the time in a function."""

    def __init__(self) -> None:
        self.calls = 0
        self.ns = 0

    def around(self, function: Any) -> Any:
        """The function, timed; `function` is what stands in a class, bound as Python would."""
        read = time.perf_counter_ns
        bind = function.__get__

        @functools.wraps(function)
        def timed(instance: Any, *args: Any, **kwargs: Any) -> Any:
            bound = bind(instance, type(instance))
            began = read()
            try:
                return bound(*args, **kwargs)
            finally:
                self.ns += read() - began
                self.calls += 1

        @functools.wraps(function)
        async def timed_async(instance: Any, *args: Any, **kwargs: Any) -> Any:
            bound = bind(instance, type(instance))
            began = read()
            try:
                return await bound(*args, **kwargs)
            finally:
                self.ns += read() - began
                self.calls += 1

        return timed_async if inspect.iscoroutinefunction(function) else timed


class Slot:
    """One method that has a hook, with a clock below the hook and one above it."""

    def __init__(self, place: str) -> None:
        module, _, path = place.partition(":")
        owner, _, self.name = path.partition(".")
        self.owner = getattr(import_module(module), owner)
        self.below, self.above = Clock(), Clock()
        self.found: list[Any] = []

    def put(self, clock: Clock) -> None:
        """Put a clock on top of what is there."""
        self.found.append(cast(Mapping[str, Any], vars(self.owner))[self.name])
        setattr(self.owner, self.name, clock.around(self.found[-1]))

    def take(self) -> None:
        """Take the topmost clock out."""
        setattr(self.owner, self.name, self.found.pop())

    @property
    def cost(self) -> Cost:
        """What the hook took, less what the clocks take."""
        spent = self.above.ns - self.below.ns if self.below.calls else self.above.ns
        return self.above.calls, max(0, spent - round(self.above.calls * _clocks_ns()))


class Layer:
    """The patch layer of this process."""

    def __init__(self, places: Mapping[str, tuple[str, ...]], added: tuple[str, ...] = ()) -> None:
        self._places, self._added = places, added
        self._slots: dict[str, list[Slot]] = {}
        self._tops: dict[str, Slot] = {}

    def switch(self, *, on: bool, timed: bool) -> None:
        """On or off; with `timed` between clocks."""
        for slot in (*self._tops.values(), *(s for slots in self._slots.values() for s in slots)):
            slot.take()
        install.deactivate()
        for slot in (s for slots in self._slots.values() for s in slots):
            slot.take()
        self._slots, self._tops = {}, {}
        if not on:
            return
        if timed:
            self._slots = {
                kind: [Slot(place) for place in places] for kind, places in self._places.items()
            }
        slots = [slot for found in self._slots.values() for slot in found]
        for slot in slots:
            slot.put(slot.below)
        install.activate(_binding())
        for slot in slots:
            slot.put(slot.above)
        if timed:
            self._tops = {place: Slot(place) for place in self._added}
            for slot in self._tops.values():
                slot.put(slot.above)

    def told(self) -> dict[str, Any]:
        """CPU time of this process, whether the layer is on, and what its hooks took since."""
        costs = {kind: [slot.cost for slot in slots] for kind, slots in self._slots.items()}
        costs |= {"poll": [slot.cost for slot in self._tops.values()]} if self._tops else {}
        return {
            "pid": os.getpid(),
            "active": install.status().active,
            "cpu_s": time.process_time(),
            "costs": costs,
        }


@functools.cache
def _binding() -> Binding:
    return bind_installed()


@functools.cache
def _clocks_ns() -> float:
    """What the clock above sees of the one below."""

    class Nothing:
        def method(self) -> None:
            pass

    below, above = Clock(), Clock()
    method: Callable[..., Any] = above.around(below.around(Nothing.method))
    nothing = Nothing()
    for _ in range(20_000):
        method(nothing)
    return (above.ns - below.ns) / above.calls


@functools.cache
def _engine_layer() -> Layer:
    return Layer(IN_ENGINE, (POLL,))


def bench_switch(self: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Method of `EngineCore`: `{"on": bool or None, "timed": bool}`; None only asks."""
    del self
    layer = _engine_layer()
    told = layer.told()
    if payload["on"] is not None:
        layer.switch(on=payload["on"], timed=payload["timed"])
    return told


def load() -> None:
    """The plugin's entry point."""
    wrapt.register_post_import_hook(_add_method, "vllm.v1.engine.core")


def _add_method(core: Any) -> None:
    setattr(core.EngineCore, METHOD, bench_switch)


@contextmanager
def plugin() -> Generator[None]:
    """Let the vLLM processes that start meanwhile have the method."""
    with tempfile.TemporaryDirectory(prefix="nnrp-bench-") as folder:
        about = Path(folder) / "nnrp_bench-0.dist-info"
        about.mkdir()
        for name, text in _PLUGIN.items():
            (about / name).write_text(text)
        sys.path.append(folder)
        try:
            yield
        finally:
            sys.path.remove(folder)


class Switchboard:
    """The layer of this process and that of the engine's, together."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._layer = Layer(IN_FRONTEND)

    async def switch(self, *, on: bool, timed: bool = False) -> None:
        """On or off in both."""
        await self._ask(on, timed)
        self._layer.switch(on=on, timed=timed)

    async def told(self) -> dict[str, dict[str, Any]]:
        """`Layer.told` of `engine` and `frontend`."""
        return {"engine": await self._ask(None, False), "frontend": self._layer.told()}

    async def _ask(self, on: bool | None, timed: bool) -> dict[str, Any]:
        return await call_engine(self._llm, METHOD, {"on": on, "timed": timed}, wait_s=30)
