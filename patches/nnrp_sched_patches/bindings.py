"""Which vLLM families the patch layer knows, as data, and the choice among them.

A family is chosen by version and confirmed by probes of the source; when the two disagree the layer
refuses (design, decision 4). Adding a family or a hook is adding rows here and one body elsewhere.
"""

from pathlib import Path

from msgspec import Struct
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches.engine_hooks import (
    ENGINE_HOOKS,
    ENGINE_RELIED_ON,
    KV_HOLDING_CONTAINERS,
    SKIPPED_CONTAINERS,
)
from nnrp_sched_patches.frontend_hooks import FRONTEND_HOOKS, FRONTEND_RELIED_ON
from nnrp_sched_patches.hook import Hook
from nnrp_sched_patches.seam import Seam, SeamFault, SeamKind, verify
from nnrp_sched_patches.version import InstalledVllm, installed_vllm

_ASYNC_LLM = "vllm.v1.engine.async_llm"
_REQUEST = "vllm.v1.request"
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
    def anchors(self) -> str:
        """The tested versions, as text."""
        return ", ".join(self.tested) or "none (only its source was checked)"

    @property
    def seams(self) -> tuple[Seam, ...]:
        """Everything that must be in the source before anything is touched."""
        return (*self.probes, *(hook.seam for hook in self.hooks), *self.relied_on)


class Binding(Struct, frozen=True):
    """A family that was found to fit an installed vLLM."""

    version: str
    family: Family


def _has(module: str, name: str, kind: SeamKind, *parameters: str) -> Seam:
    return Seam(module, name, kind, parameters)


def _lacks(module: str, name: str, kind: SeamKind, *parameters: str) -> Seam:
    return Seam(module, name, kind, without=parameters)


_METHOD, _COROUTINE = SeamKind.FUNCTION, SeamKind.ASYNC_FUNCTION
_SUBMIT = (_ASYNC_LLM, "AsyncLLM.add_request", _COROUTINE)
_SCHEDULE = (_SCHEDULER, "Scheduler.schedule", _METHOD)
_CONSTRUCTOR = (_SCHEDULER, "Scheduler.__init__", _METHOD)
_BLOCKED_HEAD = (_SCHEDULER, "Scheduler._handle_blocked_waiting_request")
_HOOKS = (*FRONTEND_HOOKS, *ENGINE_HOOKS)
_RELIED_ON = (*FRONTEND_RELIED_ON, *ENGINE_RELIED_ON)

FAMILIES = (
    Family(
        name="0.18.x",
        versions=">=0.18,<0.19",
        tested=("0.18.1",),
        probes=(
            _lacks(*_CONSTRUCTOR, "hash_block_size"),
            _has(_REQUEST, "RequestStatus.WAITING_FOR_FSM", SeamKind.ATTRIBUTE),
            _has(_ASYNC_LLM, "AsyncLLM.__init__", _METHOD, "use_cached_outputs"),
        ),
        hooks=_HOOKS,
        relied_on=(*_RELIED_ON, *SKIPPED_CONTAINERS),
    ),
    Family(
        name="0.22.x",
        versions=">=0.22,<0.23",
        tested=("0.22.1",),
        probes=(
            _has(*_CONSTRUCTOR, "hash_block_size"),
            _lacks(*_SCHEDULE, "throttle_prefills"),
        ),
        hooks=_HOOKS,
        relied_on=(*_RELIED_ON, *SKIPPED_CONTAINERS),
    ),
    Family(
        name="0.26.x",
        versions=">=0.26,<0.28",
        tested=("0.26.0",),
        probes=(
            _has(*_SCHEDULE, "throttle_prefills"),
            _lacks(*_SUBMIT, "session_id"),
        ),
        hooks=_HOOKS,
        relied_on=(*_RELIED_ON, *SKIPPED_CONTAINERS),
    ),
    Family(
        name="0.29.x",
        versions=">=0.29,<0.31",
        tested=(),
        probes=(
            _has(*_SUBMIT, "session_id"),
            _has(*_BLOCKED_HEAD, SeamKind.ABSENT),
        ),
        hooks=_HOOKS,
        relied_on=(*_RELIED_ON, *SKIPPED_CONTAINERS),
    ),
    Family(
        name="0.31.x",
        versions=">=0.31,<0.34",
        tested=("0.32.0",),
        probes=(
            _has(*_BLOCKED_HEAD, _METHOD),
            _has(*_SUBMIT, "kv_hints"),
        ),
        hooks=_HOOKS,
        relied_on=(*_RELIED_ON, *KV_HOLDING_CONTAINERS),
    ),
)
"""Oldest first (hooks.md 1.1). The minor lines between them were never read: they are refused."""


def family_of(version: Version) -> Family | None:
    """The family whose range a version lies in, judged by its base version."""
    base = Version(version.base_version)
    return next((family for family in FAMILIES if base in SpecifierSet(family.versions)), None)


def anchors() -> str:
    """The tested versions of all families, as text for diagnostics."""
    tested = "; ".join(f"{family.name}: {family.anchors}" for family in FAMILIES)
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
