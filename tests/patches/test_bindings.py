"""The choice of a family, over sources made from the tables themselves."""

import ast
import sys
import types
from pathlib import Path

import pytest
from msgspec.structs import replace
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches import bindings
from nnrp_sched_patches.bindings import FAMILIES, Family, bind, bind_installed, faults
from nnrp_sched_patches.seam import Seam, SeamKind
from nnrp_sched_patches.serving_seams import SERVING, ServingObjects, serving_faults
from nnrp_sched_patches.source_tree import FunctionNode
from nnrp_sched_patches.version import InstalledVllm
from tests.support.vllm_source import write_source

NEWEST = FAMILIES[-1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A source that has every seam of the newest family."""
    return write_source(tmp_path / "vllm", NEWEST.seams)


def _installed(root: Path, version: str | None) -> InstalledVllm:
    return InstalledVllm(root=root, version=version)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.18.0", "0.18.x"),
        ("0.18.1+cpu", "0.18.x"),
        ("0.22.9", "0.22.x"),
        ("0.26.0", "0.26.x"),
        ("0.27.1", "0.26.x"),
        ("0.29.0rc1", "0.29.x"),
        ("0.30.0", "0.29.x"),
        ("0.31.0", "0.31.x"),
        ("0.32.0+cpu", "0.31.x"),
        ("0.33.9.post1", "0.31.x"),
    ],
)
def test_a_version_is_bound_to_the_family_of_its_minor_line(
    tmp_path: Path, version: str, name: str
) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    bound = bind(_installed(write_source(tmp_path / "vllm", family.seams), version))
    assert (bound.family, bound.version) == (family, version)


@pytest.mark.parametrize(
    "version",
    ["0.17.0", "0.19.0", "0.20.2", "0.21.0", "0.23.0", "0.25.1", "0.28.0", "0.34.0", "dev", None],
)
def test_another_version_is_refused_by_name_with_families_and_anchors(
    root: Path, version: str | None
) -> None:
    with pytest.raises(UnsupportedVllm) as refusal:
        bind(_installed(root, version))
    text = str(refusal.value)
    assert (version or "of unknown version") in text
    for family in FAMILIES:
        assert f"{family.name} ({family.versions})" in text
    _assert_all_anchors_in(text)


def _assert_all_anchors_in(text: str) -> None:
    _, _, told = text.partition("tested on a real engine: ")
    for family in FAMILIES:
        assert f"{family.name}: {family.anchors}" in told
    assert "0.29.x: none" in told


def test_another_version_is_told_which_features_of_the_newest_family_it_misses(
    tmp_path: Path,
) -> None:
    root = write_source(tmp_path / "vllm", [])
    with pytest.raises(UnsupportedVllm, match="_handle_blocked_waiting_request"):
        bind(_installed(root, "0.28.0"))


@pytest.mark.parametrize(
    ("family", "probe"),
    [(family, probe) for family in FAMILIES for probe in family.probes],
    ids=lambda each: str(each) if isinstance(each, Seam) else each.name,
)
def test_a_version_whose_source_disagrees_with_a_probe_is_refused(
    tmp_path: Path, family: Family, probe: Seam
) -> None:
    root = write_source(tmp_path / "vllm", _disagreeing(family.seams, probe))
    stated = family.versions.partition(",")[0].removeprefix(">=")
    with pytest.raises(UnsupportedVllm) as refusal:
        bind(_installed(root, stated))
    text = str(refusal.value)
    assert f"vLLM {stated} " in text
    assert family.name in text
    assert str(probe) in text
    _assert_all_anchors_in(text)


def _disagreeing(seams: tuple[Seam, ...], probe: Seam) -> list[Seam]:
    """Seams of a source that fits but for one probe: what must not be there is, or the reverse."""
    if probe.kind is SeamKind.ABSENT:
        return [*seams, replace(probe, kind=SeamKind.FUNCTION)]
    if probe.without:
        return [*seams, replace(probe, parameters=probe.without)]
    return [seam for seam in seams if seam != probe]


def test_a_family_and_its_faults_are_told_apart_for_diagnostics(root: Path) -> None:
    assert faults(_installed(root, "0.32.0")) == (NEWEST, [])
    assert faults(_installed(root, "0.28.0"))[0] is None


def test_no_vllm_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "installed_vllm", lambda: None)
    with pytest.raises(UnsupportedVllm, match="vLLM is not installed"):
        bind_installed()


def test_families_do_not_overlap_and_their_tested_versions_are_inside_their_range() -> None:
    for version in (Version(f"0.{minor}.{patch}") for minor in range(40) for patch in range(3)):
        inside = [family for family in FAMILIES if version in SpecifierSet(family.versions)]
        assert inside in ([], [bindings.family_of(version)])
    for family in FAMILIES:
        for tested in family.tested:
            assert bindings.family_of(Version(tested)) is family


def test_every_hook_body_exists_in_the_patch_layer() -> None:
    for family in FAMILIES:
        for hook in family.hooks:
            module, _, name = hook.body.partition(":")
            path = Path(bindings.__file__).parents[1].joinpath(*module.split("."))
            source = ast.parse(path.with_suffix(".py").read_text())
            assert name in {node.name for node in source.body if isinstance(node, FunctionNode)}


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
