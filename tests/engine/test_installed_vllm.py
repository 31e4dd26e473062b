"""The seam tables against the installed vLLM: they fit, each is needed, and nothing is touched."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches.bindings import FAMILIES, Family, bind, family_of
from nnrp_sched_patches.seam import Seam, SeamKind
from nnrp_sched_patches.serving_seams import serving_faults
from nnrp_sched_patches.version import InstalledVllm, installed_vllm


def _installed() -> InstalledVllm:
    found = installed_vllm()
    assert found is not None, "vLLM is not installed: run make setup"
    return found


def _family() -> Family:
    """The installed version's family; the newest where none is installed or known."""
    installed = installed_vllm()
    base = installed.base_version if installed else None
    return (family_of(base) if base else None) or FAMILIES[-1]


def test_the_installed_version_is_bound_and_an_anchor() -> None:
    bound = bind(_installed())
    assert str(_installed().base_version) in bound.family.tested
    assert serving_faults(_installed().root) == []


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules of all seams, copied."""
    root = tmp_path_factory.mktemp("source") / "vllm"
    installed = _installed().root
    for relative in {_relative(installed, seam) for seam in _family().seams}:
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed / relative, root / relative)
    return root


def _relative(root: Path, seam: Seam) -> Path:
    """Where a seam's module is in the package folder `root`."""
    path = Path(*seam.module.split(".")[1:])
    return path / "__init__.py" if (root / path).is_dir() else path.with_suffix(".py")


def _without(source: str, seam: Seam) -> str:
    """The source with the seam's name changed, or put there when it must be absent."""
    tree = ast.parse(source)
    *owners, name = seam.name.split(".")
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.name != (owners or [name])[-1]:
            continue
        if not owners:
            node.name = f"renamed_{name}"
        elif seam.kind is SeamKind.ABSENT:
            node.body += ast.parse(f"def {name}(self): pass").body
        else:
            _rename_members(node, name)
    return ast.unparse(tree)


def _rename_members(owner: ast.ClassDef, name: str) -> None:
    for part in ast.walk(owner):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name == name:
            part.name = f"renamed_{name}"
        if isinstance(part, ast.Attribute) and part.attr == name:
            part.attr = f"renamed_{name}"
        if isinstance(part, ast.Name) and part.id == name:
            part.id = f"renamed_{name}"


@pytest.mark.parametrize("seam", _family().seams, ids=str)
def test_without_any_one_seam_the_layer_refuses_and_names_it(copy: Path, seam: Seam) -> None:
    same = InstalledVllm(root=copy, version=_installed().version)
    path = copy / _relative(copy, seam)
    original = path.read_text()
    path.write_text(_without(original, seam))
    try:
        with pytest.raises(UnsupportedVllm) as refusal:
            bind(same)
    finally:
        path.write_text(original)
    assert str(seam) in str(refusal.value)
    assert bind(same).family is _family()


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
