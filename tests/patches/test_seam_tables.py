"""The tables of seams against the source of every vLLM version from 0.18.1 to 0.33.0.

The sources are fetched where they are missing (1.2 GB to download, once, about 40 s); a machine
that cannot reach the package index fails these tests with what to do.
"""

import ast

import pytest
from packaging.version import Version

from nnrp_sched_patches.bindings import FAMILIES, Family, bind, family_of, source_faults
from nnrp_sched_patches.native_features import NATIVE
from nnrp_sched_patches.seam import verify
from nnrp_sched_patches.serving_seams import serving_faults
from nnrp_sched_patches.source_tree import FunctionNode, SourceTree, binding
from nnrp_sched_patches.version import InstalledVllm, version_of_source
from tests.support.fetched_sources import MAY_FETCH, source_of
from tools.vllm_sources import WHEELS

KNOWN = [version for version in WHEELS if family_of(Version(version)) is not None]


pytestmark = MAY_FETCH


def _family(version: str) -> Family:
    family = family_of(Version(version))
    assert family is not None
    return family


@pytest.mark.parametrize("version", WHEELS)
def test_every_version_serves_chats_from_homes_that_we_know(version: str) -> None:
    assert [str(fault) for fault in serving_faults(source_of(version))] == []


@pytest.mark.parametrize("version", KNOWN)
def test_every_seam_of_its_family_is_in_a_version(version: str) -> None:
    root = source_of(version)
    assert [str(fault) for fault in source_faults(root, _family(version))] == []
    stated = version_of_source(root) or version
    bound = bind(InstalledVllm(root=root, version=stated))
    assert bound.family is _family(version)


@pytest.mark.parametrize("version", WHEELS)
def test_the_probes_of_every_other_family_refuse_a_version(version: str) -> None:
    root = source_of(version)
    own = family_of(Version(version))
    fitting = [family.name for family in FAMILIES if not verify(root, family.probes)]
    assert fitting == ([] if own is None else [own.name])


READ_BY_PLACE = {
    ("vllm.v1.engine.async_llm", "AsyncLLM.add_request"): {"request_id": 0, "trace_headers": 6},
    ("vllm.v1.engine.async_llm", "AsyncLLM.abort"): {"request_id": 0, "internal": 1},
    ("vllm.v1.engine.output_processor", "OutputProcessor.add_request"): {"request": 0},
    ("vllm.v1.engine.output_processor", "OutputProcessor.process_outputs"): {
        "engine_core_outputs": 0,
        "engine_core_timestamp": 1,
    },
    ("vllm.v1.core.sched.scheduler", "Scheduler.add_request"): {"request": 0},
    ("vllm.v1.core.sched.scheduler", "Scheduler.finish_requests"): {"finished_status": 1},
    ("vllm.v1.core.sched.scheduler", "Scheduler._free_request"): {"request": 0},
}
"""Arguments that the hooks' bodies take by place, after `self`, when they are not given by name."""


@pytest.mark.parametrize("version", KNOWN)
def test_arguments_that_hooks_read_by_place_stand_there(version: str) -> None:
    source = SourceTree(source_of(version))
    for (module, name), places in READ_BY_PLACE.items():
        assert any(
            (hook.seam.module, hook.seam.name) == (module, name) for hook in _family(version).hooks
        )
        path = source.module_path(module)
        assert path is not None
        owner_name, _, method_name = name.partition(".")
        owner = binding(source.body(path), owner_name)
        assert isinstance(owner, ast.ClassDef)
        method = binding(owner.body, method_name)
        assert isinstance(method, FunctionNode)
        # The first one is `self`.
        order = [argument.arg for argument in (*method.args.posonlyargs, *method.args.args)][1:]
        assert {parameter: order.index(parameter) for parameter in places} == places


@pytest.mark.parametrize("version", WHEELS)
def test_vllm_itself_does_in_a_version_what_the_table_says(version: str) -> None:
    root = source_of(version)
    for feature in NATIVE:
        found = not verify(root, [feature.seam])
        assert found == feature.in_version(Version(version)), feature.what


def test_every_family_has_the_sources_of_its_anchors_and_of_one_version_at_least() -> None:
    for family in FAMILIES:
        inside = {version for version in KNOWN if _family(version) is family}
        assert inside, family.name
        assert set(family.tested) <= inside
