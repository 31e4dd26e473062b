"""Other tools wrap the same places: none is ever cut out, and what became of our hook is told."""

import functools
import types
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import wrapt
from hypothesis import given, settings
from hypothesis import strategies as st

from nnrp_sched_patches.install import PatchLayer
from nnrp_sched_patches.slot import COVERED, INSTALLED, LEFT, REPLACED, slots
from tests.support.toy_vllm import ENGINE, binding, class_slots, hook, toy_modules

STEP = f"{ENGINE}:Engine.step"


def _states(layer: PatchLayer) -> list[str]:
    return [status.state for status in layer.status().hooks]


class Tool:
    """Another tool that wraps `Engine.step` and counts the calls that it sees."""

    def __init__(self, toy: types.SimpleNamespace, way: str) -> None:
        self.engine = toy.Engine
        self.calls = 0
        self.before = slots(toy.Engine)["step"]
        self.wrapper = self.WAYS[way](self)

    def install(self) -> None:
        """Put the wrapper over what is there."""
        self.engine.step = self.wrapper

    def restore(self) -> None:
        """Put back what the tool found, as most tools do: without a look at what is there now."""
        self.engine.step = self.before

    def _plain(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return wrapped(*args, **kwargs)

        return wrapper

    def _by_wrapt(self) -> Any:
        def wrapper(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
            self.calls += 1
            return wrapped(*args, **kwargs)

        return wrapt.FunctionWrapper(self.before, wrapper)

    def _over_the_slot(self) -> Any:
        return functools.wraps(self.before)(self._plain(self.before))

    def _over_the_class(self) -> Any:
        bound_by_the_class = self.engine.step
        return functools.wraps(bound_by_the_class)(self._plain(bound_by_the_class))

    def _opaque(self) -> Any:
        return self._plain(self.before)

    WAYS: ClassVar[dict[str, Callable[["Tool"], Any]]] = {
        "wrapt": _by_wrapt,
        "wraps, over the slot": _over_the_slot,
        "wraps, over the class's attribute": _over_the_class,
        "no trace of what it calls": _opaque,
    }


SHOWING = [way for way in Tool.WAYS if way != "no trace of what it calls"]
"""The ways in which a wrapper shows what it calls."""


@pytest.mark.parametrize("way", Tool.WAYS)
def test_a_wrapper_below_ours_sees_every_call_and_comes_back_by_identity(
    toy: types.SimpleNamespace, layer: PatchLayer, way: str
) -> None:
    tool = Tool(toy, way)
    tool.install()
    before = class_slots(toy.Engine)
    layer.activate(binding(hook(STEP)))
    assert toy.Engine().step(1) == 1
    assert (tool.calls, toy.calls) == (1, [("Engine", 1)])
    assert _states(layer) == [INSTALLED]
    assert layer.deactivate().hooks == ()
    assert class_slots(toy.Engine) == before
    toy.Engine().step(1)
    assert (tool.calls, len(toy.calls)) == (2, 1)


@pytest.mark.parametrize("way", Tool.WAYS)
def test_a_wrapper_above_ours_stays_and_ours_is_switched_off_below_it(
    toy: types.SimpleNamespace,
    layer: PatchLayer,
    way: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    layer.activate(binding(hook(STEP)))
    tool = Tool(toy, way)
    tool.install()
    toy.Engine().step(1)
    assert (tool.calls, toy.calls) == (1, [("Engine", 1)])
    shows = way in SHOWING
    assert _states(layer) == [COVERED if shows else REPLACED]
    status = layer.deactivate()
    assert not status.active
    told = LEFT if shows else REPLACED
    assert [one.state for one in status.hooks] == [told]
    assert f"hook Engine.step at {STEP}: {told}" in caplog.text
    assert slots(toy.Engine)["step"] is tool.wrapper
    assert toy.Engine(1).step(1) == 2
    assert (tool.calls, len(toy.calls)) == (2, 1), "theirs goes on, ours does not"


@pytest.mark.parametrize("way", Tool.WAYS)
def test_once_the_tool_above_is_gone_a_second_deactivation_takes_ours_out(
    toy: types.SimpleNamespace, layer: PatchLayer, way: str
) -> None:
    before = class_slots(toy.Engine)
    layer.activate(binding(hook(STEP)))
    tool = Tool(toy, way)
    tool.install()
    layer.deactivate()
    tool.restore()
    assert _states(layer) == [LEFT]
    assert toy.Engine(1).step(1) == 2
    assert toy.calls == []
    assert layer.deactivate().hooks == ()
    assert class_slots(toy.Engine) == before


@pytest.mark.parametrize("way", Tool.WAYS)
def test_activated_again_under_the_tool_a_call_is_seen_once(
    toy: types.SimpleNamespace, layer: PatchLayer, way: str
) -> None:
    layer.activate(binding(hook(STEP)))
    tool = Tool(toy, way)
    tool.install()
    layer.deactivate()
    layer.activate(binding(hook(STEP)))
    toy.Engine().step(1)
    assert (tool.calls, toy.calls) == (1, [("Engine", 1)])
    # Where the tool does not show that it calls ours, a new one is put over it.
    expected = [COVERED] if way in SHOWING else [INSTALLED, REPLACED]
    assert _states(layer) == expected
    layer.deactivate()
    assert slots(toy.Engine)["step"] is tool.wrapper


def test_a_tool_that_takes_itself_out_from_below_ours_takes_ours_along_and_that_is_told(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    before = class_slots(toy.Engine)
    tool = Tool(toy, "wrapt")
    tool.install()
    layer.activate(binding(hook(STEP)))
    tool.restore()
    toy.Engine().step(1)
    assert (tool.calls, toy.calls) == (0, [])
    assert _states(layer) == [REPLACED]
    layer.deactivate()
    assert class_slots(toy.Engine) == before, "the tool's wrapper must not come back"


def test_what_a_tool_put_into_our_place_is_left_there(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    layer.activate(binding(hook(STEP)))

    def step(_self: Any, _amount: int) -> str:
        return "theirs"

    toy.Engine.step = step
    assert [one.state for one in layer.deactivate().hooks] == [REPLACED]
    assert slots(toy.Engine)["step"] is step
    layer.activate(binding(hook(STEP)))
    assert toy.Engine().step(1) == "theirs"
    assert toy.calls == [("Engine", "theirs")]
    layer.deactivate()
    assert slots(toy.Engine)["step"] is step


def test_when_the_tool_threw_our_wrapper_away_a_new_one_is_installed(
    toy: types.SimpleNamespace, layer: PatchLayer
) -> None:
    raw = slots(toy.Engine)["step"]
    layer.activate(binding(hook(STEP)))
    Tool(toy, "wrapt").install()
    layer.deactivate()
    toy.Engine.step = raw
    layer.activate(binding(hook(STEP)))
    toy.Engine().step(1)
    assert toy.calls == [("Engine", 1)]
    assert _states(layer) == [INSTALLED]
    assert layer.deactivate().hooks == ()
    assert slots(toy.Engine)["step"] is raw


STEPS = ["activate", "deactivate", "tool leaves", *Tool.WAYS]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(["activate", "deactivate", "tool leaves", *Tool.WAYS]), max_size=12)
)
def test_in_whatever_order_tools_and_the_layer_come_and_go_every_one_sees_each_call_once(
    steps: list[str],
) -> None:
    with toy_modules() as toy:
        raw = slots(toy.Engine)["step"]
        layer, tools = PatchLayer(), list[Tool]()
        for step in steps:
            if step == "activate":
                layer.activate(binding(hook(STEP)))
            elif step == "deactivate":
                layer.deactivate()
            elif step != "tool leaves":
                tools.append(Tool(toy, step))
                tools[-1].install()
            elif tools and slots(toy.Engine)["step"] is tools[-1].wrapper:
                # A tool that looks before it restores.
                tools.pop().restore()
            toy.calls.clear()
            before = [tool.calls for tool in tools]
            assert toy.Engine(1).step(1) == 2
            assert [tool.calls for tool in tools] == [calls + 1 for calls in before]
            assert len(toy.calls) == layer.status().active
        while tools:
            layer.deactivate()
            assert slots(toy.Engine)["step"] is tools[-1].wrapper
            tools.pop().restore()
        assert layer.deactivate().hooks == ()
        assert slots(toy.Engine)["step"] is raw
