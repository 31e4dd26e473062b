"""What can be said about the installed vLLM and the patch layer without starting anything."""

import os
from importlib.metadata import entry_points
from typing import Literal

from msgspec import Struct

from nnrp_sched_patches import bindings, embedded_model
from nnrp_sched_patches.child_environment import (
    ENTRY_POINT,
    ENTRY_POINT_GROUP,
    PLUGINS_VARIABLE,
    RUST_FRONTEND_VARIABLE,
)
from nnrp_sched_patches.launch import VLLM_IS_MISSING
from nnrp_sched_patches.seam import verify
from nnrp_sched_patches.serving_seams import SERVING, serving_faults
from nnrp_sched_patches.version import InstalledVllm, installed_vllm

Status = Literal["ok", "warning", "failed"]


class Check(Struct, frozen=True):
    """One thing looked at."""

    name: str
    status: Status
    found: str
    advice: str = ""


def checks() -> list[Check]:
    """Everything the patch layer can tell, in reading order."""
    installed = installed_vllm()
    if installed is None:
        return [Check("vllm", "warning", "not installed", VLLM_IS_MISSING), *_plugin()]
    came_with = f" (distribution {installed.distribution})" if installed.distribution else ""
    return [
        Check("vllm", "ok", f"{installed.version}{came_with} in {installed.root}"),
        _serving(installed),
        *_seams(installed),
        *_plugin(),
        _model(),
    ]


def _serving(installed: InstalledVllm) -> Check:
    missing = serving_faults(installed.root)
    if missing:
        return Check(
            "serving objects",
            "failed",
            "; ".join(map(str, missing)),
            f"this vLLM cannot serve chats in-process; {bindings.anchors()}",
        )
    return Check("serving objects", "ok", f"{len(SERVING)} of {len(SERVING)} found")


def _seams(installed: InstalledVllm) -> list[Check]:
    """One line for the family, then one for each of its seams."""
    family, missing = bindings.faults(installed)
    if family is None:
        return [
            Check(
                "binding",
                "failed",
                f"no family for vLLM {installed.version}",
                f"run without --patch-vllm, or install a supported version; {bindings.anchors()}",
            )
        ]
    advice = f"run without --patch-vllm, or install a tested version; {bindings.anchors()}"
    summary = f"{family.name} ({family.versions}), tested with {family.anchors}"
    verdict = Check("binding", "failed" if missing else "ok", summary, advice if missing else "")
    seams = [
        Check(f"seam {seam}", "failed", str(fault[0]), advice)
        if (fault := verify(installed.root, (seam,)))
        else Check(f"seam {seam}", "ok", f"{seam.kind} found" if seam.kind != "absent" else "free")
        for seam in family.seams
    ]
    return [verdict, *seams]


def _plugin() -> list[Check]:
    """Whether vLLM's processes would load the layer, were it asked for."""
    installed = ENTRY_POINT in entry_points(group=ENTRY_POINT_GROUP).names
    found = f"entry point {ENTRY_POINT} in {ENTRY_POINT_GROUP}"
    entry = (
        Check("plugin", "ok", f"{found}; inert without NNRP_SCHED_PATCH=1")
        if installed
        else Check("plugin", "failed", f"no {found}", "install this package with pip")
    )
    return [entry, _allow_list(), _frontend()]


def _allow_list() -> Check:
    allowed = os.environ.get(PLUGINS_VARIABLE)
    if allowed is None:
        return Check(PLUGINS_VARIABLE, "ok", "not set: vLLM loads every plugin")
    if ENTRY_POINT in allowed.split(","):
        return Check(PLUGINS_VARIABLE, "ok", f"{allowed!r} names {ENTRY_POINT}")
    return Check(
        PLUGINS_VARIABLE,
        "warning",
        f"{allowed!r} hides the entry point {ENTRY_POINT} from vLLM's processes",
        f"`nnrp-sched run --patch-vllm` adds it by itself; elsewhere add {ENTRY_POINT} to the list",
    )


def _frontend() -> Check:
    if os.environ.get(RUST_FRONTEND_VARIABLE, "0") in ("", "0"):
        return Check("frontend", "ok", "Python")
    return Check(
        "frontend",
        "warning",
        f"{RUST_FRONTEND_VARIABLE} selects vLLM's Rust frontend, which cannot be patched",
        f"unset {RUST_FRONTEND_VARIABLE} for --patch-vllm",
    )


def _model() -> Check:
    path = embedded_model.embedded_model_path()
    if path is not None:
        return Check("embedded model", "ok", str(path))
    return Check(
        "embedded model",
        "warning",
        f"not in {embedded_model.model_directory()}",
        "nnrp-sched model prepares it; `run` without --model does so too",
    )
