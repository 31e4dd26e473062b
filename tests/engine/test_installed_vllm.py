"""The tables against the installed vLLM: they fit, and importing and loading touches nothing."""

import subprocess
import sys

from nnrp_sched_patches.bindings import bind
from nnrp_sched_patches.serving_seams import serving_faults
from nnrp_sched_patches.version import InstalledVllm, installed_vllm


def _installed() -> InstalledVllm:
    found = installed_vllm()
    assert found is not None, "vLLM is not installed: run make setup"
    return found


def test_the_installed_version_is_bound_and_an_anchor() -> None:
    bound = bind(_installed())
    assert str(_installed().base_version) in bound.family.tested
    assert serving_faults(_installed().root) == []


_INERT = """
import importlib, sys, types
from vllm.plugins import load_general_plugins
from nnrp_sched_patches.bindings import bind_installed

def slots():
    found = {}
    for seam in bind_installed().family.seams:
        module = importlib.import_module(seam.module)
        owner = vars(module)[seam.name.split(".")[0]]
        found |= {(seam.module, owner.__name__, n): v for n, v in vars(owner).items()}
    return found

before = slots()
load_general_plugins()
after = slots()
assert before.keys() == after.keys()
assert all(before[key] is after[key] for key in before), "a slot changed"
import vllm.plugins
assert vllm.plugins.plugins_loaded
loaded = [name for name in sys.modules if name.startswith("nnrp_sched_patches")]
assert "nnrp_sched_patches.plugin" in loaded, loaded
assert "nnrp_sched_patches.install" not in loaded, loaded
assert "wrapt" not in sys.modules

from nnrp_sched_patches import install
status = install.activate()
assert status.active
patched = slots()
changed = {key for key in patched if before.get(key) is not patched[key]}
hooked = {hook.seam.name.split(".")[-1] for hook in bind_installed().family.hooks}
assert {name for _, _, name in changed} == hooked, changed
install.activate()
again = slots()
assert all(patched[key] is again[key] for key in patched), "activated twice"
status = install.deactivate()
assert not status.active and not status.hooks, status
restored = slots()
assert before.keys() == restored.keys()
assert all(before[key] is restored[key] for key in before), "a slot was not restored"
print("untouched")
"""


def test_unasked_every_slot_stays_and_deactivation_restores_every_slot() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _INERT], capture_output=True, text=True, timeout=300
    )
    assert result.stdout.splitlines()[-1:] == ["untouched"], result.stderr[-3000:]
