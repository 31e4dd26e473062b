"""The choice of a family, over sources made from the tables themselves."""

import ast
import sys
import types
from pathlib import Path

import pytest
from packaging.version import Version

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches import bindings
from nnrp_sched_patches.bindings import FAMILIES, bind, bind_installed, faults
from nnrp_sched_patches.seam import Seam
from nnrp_sched_patches.serving_seams import SERVING, ServingObjects, serving_faults
from nnrp_sched_patches.version import InstalledVllm
from tests.support.vllm_source import write_source

NEWEST = FAMILIES[-1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A source that has every seam of the newest family."""
    return write_source(tmp_path / "vllm", NEWEST.seams)


def _installed(root: Path, version: str | None) -> InstalledVllm:
    return InstalledVllm(root=root, version=version)


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0+cpu", "0.32.1", "0.33.0", "0.33.9.post1"])
def test_versions_of_a_family_are_bound_to_it(root: Path, version: str) -> None:
    bound = bind(_installed(root, version))
    assert (bound.family.name, bound.version) == ("0.31.x", version)


@pytest.mark.parametrize("version", ["0.17.0", "0.30.0", "0.34.0", "1.0.0", "dev", None])
def test_another_version_is_refused_by_name_with_the_anchors(
    root: Path, version: str | None
) -> None:
    with pytest.raises(UnsupportedVllm) as refusal:
        bind(_installed(root, version))
    text = str(refusal.value)
    assert (version or "of unknown version") in text
    assert "0.31.x (>=0.31,<0.34)" in text
    assert "tested on a real engine: 0.31.x: 0.32.0" in text


def test_another_version_is_told_which_features_of_the_newest_family_it_misses(
    tmp_path: Path,
) -> None:
    root = write_source(tmp_path / "vllm", [])
    with pytest.raises(UnsupportedVllm, match="_handle_blocked_waiting_request"):
        bind(_installed(root, "0.30.0"))


@pytest.mark.parametrize("probe", NEWEST.probes, ids=str)
def test_a_version_whose_source_disagrees_with_a_probe_is_refused(
    tmp_path: Path, probe: Seam
) -> None:
    rest = [seam for seam in NEWEST.seams if seam != probe]
    root = write_source(tmp_path / "vllm", rest)
    with pytest.raises(UnsupportedVllm) as refusal:
        bind(_installed(root, "0.32.0"))
    assert str(probe) in str(refusal.value)
    assert "0.32.0" in str(refusal.value)


def test_a_family_and_its_faults_are_told_apart_for_diagnostics(root: Path) -> None:
    assert faults(_installed(root, "0.32.0")) == (NEWEST, [])
    assert faults(_installed(root, "0.30.0"))[0] is None


def test_no_vllm_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "installed_vllm", lambda: None)
    with pytest.raises(UnsupportedVllm, match="vLLM is not installed"):
        bind_installed()


def test_families_do_not_overlap_and_name_a_tested_version_inside_their_range() -> None:
    for family in FAMILIES:
        for version in family.tested:
            assert bindings.family_of(Version(version)) is family


def test_every_hook_body_exists_in_the_patch_layer() -> None:
    for family in FAMILIES:
        for hook in family.hooks:
            module, _, name = hook.body.partition(":")
            path = Path(bindings.__file__).parents[1].joinpath(*module.split("."))
            source = ast.parse(path.with_suffix(".py").read_text())
            assert name in {node.name for node in source.body if isinstance(node, ast.FunctionDef)}


def test_a_serving_object_is_looked_for_in_every_home(tmp_path: Path) -> None:
    oldest = [homes[-1] for homes in SERVING.values()]
    assert serving_faults(write_source(tmp_path / "old" / "vllm", oldest)) == []


def test_a_serving_object_without_a_home_is_named(tmp_path: Path) -> None:
    rest = [homes[0] for key, homes in SERVING.items() if key != "build_app"]
    root = write_source(tmp_path / "vllm", rest)
    assert [fault.seam for fault in serving_faults(root)] == [SERVING["build_app"][0]]
    with pytest.raises(UnsupportedVllm, match="build_app"):
        ServingObjects(root)["build_app"]


def test_a_serving_function_is_called_with_the_arguments_that_its_home_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, *_, oldest = SERVING["build_app"]
    for seam in (newest, oldest):
        root = write_source(tmp_path / seam.module / "vllm", [seam])
        found = types.ModuleType(seam.module)
        vars(found)["build_app"] = dict  # Gives back what it is called with.
        monkeypatch.setitem(sys.modules, seam.module, found)
        offered = {"args": 1, "supported_tasks": 2, "model_config": 3}
        given = ServingObjects(root).call("build_app", **offered)
        assert given == {name: offered[name] for name in seam.parameters}
    assert newest.parameters != oldest.parameters
