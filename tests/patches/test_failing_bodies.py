"""Whatever goes wrong in the body of any hook, vLLM's call has its own result and nothing else."""

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from nnrp_sched_patches import hook_forms
from nnrp_sched_patches.bindings import FAMILIES, Binding, Family
from nnrp_sched_patches.hook import Hook, HookForm
from nnrp_sched_patches.hook_forms import MAX_FAILURES
from nnrp_sched_patches.install import PatchLayer
from nnrp_sched_patches.slot import INSTALLED, TURNED_OFF
from tests.support import failing_bodies
from tests.support.vllm_hosts import ANSWER, HostFailed, Hosts, hosts

pytestmark = pytest.mark.anyio

# The rows of a hook are the same in every family but for the seams' parameters.
HOOKS = {hook.name: (family, hook) for family in FAMILIES for hook in family.hooks}


def _cases(*, over_a_method: bool) -> list[Any]:
    """Every hook with every failing body of its form; `over_a_method` of vLLM's only, or any."""
    return [
        pytest.param(family, hook, body, id=f"{hook.name} {body.__name__}")
        for family, hook in HOOKS.values()
        for body in failing_bodies.BY_FORM[hook.form]
        if hook.form is not HookForm.ADDED or not over_a_method
    ]


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What the layer logs: not for pytest's reports, half characters break xdist."""
    messages: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        messages.append(record.getMessage())
        return False

    logger = logging.getLogger(hook_forms.__name__)
    logger.addFilter(keep)
    yield messages
    logger.removeFilter(keep)


def test_every_form_has_its_ways_to_fail() -> None:
    assert set(failing_bodies.BY_FORM) == {form.value for form in HookForm}


async def _called(host: Any, hook: Hook, argument: Any) -> Any:
    """The result of the hooked method, as vLLM would call it."""
    name = hook.seam.name.rpartition(".")[2]
    result: Any = getattr(host, name)(argument)
    if inspect.isawaitable(result):
        result = await result
    resolved: Any = getattr(result, "result", None)
    return result if resolved is None else resolved(timeout=0)


@pytest.mark.parametrize(("family", "hook", "body"), _cases(over_a_method=False))
async def test_the_call_goes_on_unchanged_and_the_fault_is_counted_and_told_once(
    family: Family,
    hook: Hook,
    body: Callable[..., Any],
    layer: PatchLayer,
    told: list[str],
) -> None:
    failing = replace(hook, body=f"{failing_bodies.__name__}:{body.__name__}")
    binding = Binding(version="of the test", family=replace(family, hooks=(failing,)))
    with hosts(family) as running:
        layer.activate(binding)
        try:
            await _watch(layer, running, failing, told)
        finally:
            layer.deactivate()
        assert running.untouched()


async def _watch(layer: PatchLayer, running: Hosts, hook: Hook, told: list[str]) -> None:
    host = running.owner(hook)()
    # A constructor that is hooked was called.
    (status,) = layer.status().hooks
    before = status.failures
    for call in range(before + 1, MAX_FAILURES + 4):
        answer = await _called(host, hook, call)
        if hook.form is HookForm.ADDED:
            # Nothing of vLLM's to go on with: an error that its encoder takes.
            assert set(cast(dict[str, Any], answer)) == {"error"}
            assert msgspec.msgpack.encode(answer)
        elif not hook.seam.name.endswith("__init__"):
            assert answer == (ANSWER, call)
        (status,) = layer.status().hooks
        assert status.failures == min(call, MAX_FAILURES)
        assert status.state == (INSTALLED if call < MAX_FAILURES else TURNED_OFF)
    assert told == [
        f"the body of hook {hook.name} failed",
        f"hook {hook.name} failed {MAX_FAILURES} times and is off now",
    ]
    if hook.form is not HookForm.ADDED:
        with pytest.raises(HostFailed):
            await _called(host, hook, HostFailed)


@pytest.mark.parametrize(("family", "hook", "body"), _cases(over_a_method=True))
async def test_what_vllm_raises_goes_up_as_it_is(
    family: Family, hook: Hook, body: Callable[..., Any], layer: PatchLayer
) -> None:
    failing = replace(hook, body=f"{failing_bodies.__name__}:{body.__name__}")
    binding = Binding(version="of the test", family=replace(family, hooks=(failing,)))
    with hosts(family) as running:
        host = running.owner(hook)()
        layer.activate(binding)
        try:
            with pytest.raises(HostFailed) as raised:
                await _called(host, hook, HostFailed)
        finally:
            layer.deactivate()
    assert raised.value.__cause__ is None
