"""Each row of each family's table is needed: without it the layer refuses and names it.

Over the source of one version of each family, cut down, fetched where it is missing.
"""

import ast
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest
from packaging.version import Version

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches import bindings, install
from nnrp_sched_patches.bindings import FAMILIES, Binding, Family, bind
from nnrp_sched_patches.hook import Hook
from nnrp_sched_patches.install import PatchLayer
from nnrp_sched_patches.seam import Seam
from nnrp_sched_patches.source_tree import SourceTree
from nnrp_sched_patches.version import InstalledVllm, installed_vllm
from tests.support.fetched_sources import MAY_FETCH, source_of
from tests.support.source_changes import changes, without_class, write_skeleton
from tests.support.vllm_hosts import Hosts, hosts
from tools.vllm_sources import WHEELS

pytestmark = MAY_FETCH
ROWS = [(family, seam) for family in FAMILIES for seam in dict.fromkeys(family.seams)]


def _grouped(key: Callable[[Seam], str]) -> list[tuple[Family, list[Seam]]]:
    """By family, the seams of each module or class."""
    return [
        (family, list(seams))
        for family in FAMILIES
        for _, seams in groupby(sorted(family.seams, key=key), key)
    ]


MODULES = _grouped(lambda seam: seam.module)
CLASSES = _grouped(lambda seam: f"{seam.module}:{seam.name.partition('.')[0]}")
HOOKS = [(family, hook) for family in FAMILIES for hook in family.hooks]


def _name(each: Family | Seam | Hook) -> str:
    if isinstance(each, Seam):
        return f"{each}({','.join((*each.parameters, *each.without))})"
    return each.name


def _place(each: Family | list[Seam]) -> str:
    return str(each[0]).partition(".__")[0] if isinstance(each, list) else each.name


def _version(family: Family) -> str:
    """The version that a family's rows are tried on: its anchor, else its oldest."""
    of_family = [known for known in WHEELS if bindings.family_of(Version(known)) is family]
    return (family.tested or tuple(of_family))[0]


def _source(version: str) -> Path:
    """The `vllm` package folder of a version."""
    installed = installed_vllm()
    if installed is not None and str(installed.base_version) == version:
        return installed.root
    return source_of(version)


@pytest.fixture(scope="module")
def skeletons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, InstalledVllm]:
    """By family, once they are made."""
    del tmp_path_factory
    return {}


@pytest.fixture
def copy(
    family: Family, skeletons: dict[str, InstalledVllm], tmp_path_factory: pytest.TempPathFactory
) -> InstalledVllm:
    """A cut-down copy of the source of one version of the family, which fits it."""
    if family.name not in skeletons:
        version = _version(family)
        target = tmp_path_factory.mktemp("skeleton") / "vllm"
        root = write_skeleton(_source(version), target, family.seams)
        skeletons[family.name] = InstalledVllm(root=root, version=version)
        assert bind(skeletons[family.name]).family is family
    return skeletons[family.name]


def _refused(copy: InstalledVllm, seam: Seam, text: str | None, running: Hosts) -> str:
    """What activation says while a seam's module has another text, or none at all."""
    path = _module(copy, seam)
    before = path.read_text()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    try:
        with pytest.raises(UnsupportedVllm) as refusal:
            install.activate()
    finally:
        path.write_text(before)
    assert running.untouched()
    assert (install.status().active, install.status().hooks) == (False, ())
    return str(refusal.value)


def _module(copy: InstalledVllm, seam: Seam) -> Path:
    path = SourceTree(copy.root).module_path(seam.module)
    assert path is not None
    return path


@pytest.fixture
def running(
    family: Family, copy: InstalledVllm, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hosts]:
    """Classes to be patched, of a process whose vLLM is the copy."""
    monkeypatch.setattr(install, "_LAYER", PatchLayer())
    monkeypatch.setattr(bindings, "installed_vllm", lambda: copy)
    with hosts(family) as made:
        yield made


@pytest.mark.parametrize(("family", "seam"), ROWS, ids=_name)
def test_without_any_one_seam_the_layer_refuses_names_it_and_patches_nothing(
    family: Family, seam: Seam, copy: InstalledVllm, running: Hosts
) -> None:
    del family
    tried = list(changes(_module(copy, seam).read_text(), seam))
    for what, tree in tried:
        assert f"{seam} " in _refused(copy, seam, ast.unparse(tree), running), what
    assert len(tried) >= 1 + len(seam.parameters) + (not seam.without)


@pytest.mark.parametrize(("family", "seams"), CLASSES, ids=_place)
def test_without_a_class_every_seam_in_it_is_named(
    family: Family, seams: list[Seam], copy: InstalledVllm, running: Hosts
) -> None:
    del family
    text = without_class(_module(copy, seams[0]).read_text(), seams[0].name.partition(".")[0])
    told = _refused(copy, seams[0], ast.unparse(text), running)
    assert [str(seam) for seam in seams if f"{seam} " not in told] == []


@pytest.mark.parametrize(("family", "seams"), MODULES, ids=_place)
def test_without_a_module_every_seam_in_it_is_named(
    family: Family, seams: list[Seam], copy: InstalledVllm, running: Hosts
) -> None:
    del family
    told = _refused(copy, seams[0], None, running)
    assert [str(seam) for seam in seams if f"{seam} " not in told] == []


@pytest.mark.parametrize(("family", "hook"), HOOKS, ids=_name)
def test_a_running_class_that_lost_the_place_of_a_hook_stays_as_it_is(
    family: Family, hook: Hook, layer: PatchLayer
) -> None:
    owner = str(hook.seam).rpartition(".")[0]
    for lose, named in ((Hosts.without_member, str(hook.seam)), (Hosts.without_class, owner)):
        with hosts(family) as running:
            lose(running, hook)
            with pytest.raises(UnsupportedVllm) as refusal:
                layer.activate(Binding(version="of the test", family=family))
            assert named in str(refusal.value)
            assert running.untouched()
            assert (layer.status().active, layer.status().hooks) == (False, ())


@pytest.mark.parametrize("family", FAMILIES, ids=_name)
def test_every_hook_fits_and_is_undone_by_identity(family: Family, layer: PatchLayer) -> None:
    with hosts(family) as running:
        status = layer.activate(Binding(version="of the test", family=family))
        assert {one.name for one in status.hooks} == {hook.name for hook in family.hooks}
        assert not running.untouched()
        layer.deactivate()
        assert running.untouched()
