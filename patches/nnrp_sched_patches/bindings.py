"""Which vLLM families the patch layer knows, as data, and the choice among them.

A family is chosen by version and confirmed by probes of the source; when the two disagree the layer
refuses (design, decision 4). Adding a family or a hook is adding rows here and one body elsewhere.
"""

from pathlib import Path

from msgspec import Struct
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches.engine_hooks import ENGINE_HOOKS, ENGINE_RELIED_ON, KV_HOLDING_CONTAINERS
from nnrp_sched_patches.frontend_hooks import FRONTEND_HOOKS, FRONTEND_RELIED_ON
from nnrp_sched_patches.hook import Hook
from nnrp_sched_patches.seam import Seam, SeamFault, SeamKind, verify
from nnrp_sched_patches.version import InstalledVllm, installed_vllm

_ASYNC_LLM = "vllm.v1.engine.async_llm"
_SCHEDULER = "vllm.v1.core.sched.scheduler"


class Family(Struct, frozen=True):
    """A range of vLLM versions that one set of hooks fits."""

    name: str
    versions: str
    """A version specifier."""
    tested: tuple[str, ...]
    """The versions of it that the tests run on a real engine: the anchors."""
    probes: tuple[Seam, ...]
    """What tells this family's source from its neighbours'."""
    hooks: tuple[Hook, ...]
    relied_on: tuple[Seam, ...]
    """What the hooks' bodies use beyond the places they are installed in."""

    @property
    def seams(self) -> tuple[Seam, ...]:
        """Everything that must be in the source before anything is touched."""
        return (*self.probes, *(hook.seam for hook in self.hooks), *self.relied_on)


class Binding(Struct, frozen=True):
    """A family that was found to fit an installed vLLM."""

    version: str
    family: Family


FAMILIES = (
    Family(
        name="0.31.x",
        versions=">=0.31,<0.34",
        tested=("0.32.0",),
        probes=(
            Seam(_SCHEDULER, "Scheduler._handle_blocked_waiting_request", SeamKind.FUNCTION),
            Seam(_ASYNC_LLM, "AsyncLLM.add_request", SeamKind.ASYNC_FUNCTION, ("kv_hints",)),
        ),
        hooks=(*FRONTEND_HOOKS, *ENGINE_HOOKS),
        relied_on=(*FRONTEND_RELIED_ON, *ENGINE_RELIED_ON, *KV_HOLDING_CONTAINERS),
    ),
)


def family_of(version: Version) -> Family | None:
    """The family whose range a version lies in, judged by its base version."""
    base = Version(version.base_version)
    return next((family for family in FAMILIES if base in SpecifierSet(family.versions)), None)


def anchors() -> str:
    """The tested versions of all families, as text for diagnostics."""
    tested = "; ".join(f"{family.name}: {', '.join(family.tested)}" for family in FAMILIES)
    return f"tested on a real engine: {tested}"


def faults(installed: InstalledVllm) -> tuple[Family | None, list[SeamFault]]:
    """The family for an installed vLLM, and every seam of it that is not there.

    For a version outside all families: None, and what the newest one misses in that source.
    """
    base = installed.base_version
    family = None if base is None else family_of(base)
    if family is None:
        return None, verify(installed.root, FAMILIES[-1].probes)
    return family, verify(installed.root, family.seams)


def bind(installed: InstalledVllm) -> Binding:
    """The binding for an installed vLLM; raises UnsupportedVllm naming what does not fit."""
    family, missing = faults(installed)
    stated = installed.version or "of unknown version"
    if family is None:
        ranges = ", ".join(f"{known.name} ({known.versions})" for known in FAMILIES)
        lacking = f"; {FAMILIES[-1].name} misses there: {_listed(missing)}" if missing else ""
        raise UnsupportedVllm(
            f"vLLM {stated} in {installed.root} is none that the patch layer knows"
            f" (families: {ranges}){lacking}; {anchors()}"
        )
    if missing:
        raise UnsupportedVllm(
            f"vLLM {stated} in {installed.root} does not have what family {family.name} needs:"
            f" {_listed(missing)}; {anchors()}"
        )
    return Binding(version=stated, family=family)


def bind_installed() -> Binding:
    """The binding for the vLLM that `import vllm` would give; raises UnsupportedVllm."""
    installed = installed_vllm()
    if installed is None:
        raise UnsupportedVllm(f"vLLM is not installed in this environment; {anchors()}")
    return bind(installed)


def source_faults(root: Path, family: Family) -> list[SeamFault]:
    """Every seam of a family that an unpacked source lacks, whatever version that source states."""
    return verify(root, family.seams)


def _listed(missing: list[SeamFault]) -> str:
    return "; ".join(str(fault) for fault in missing)
