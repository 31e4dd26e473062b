"""What can be said about the installed vLLM and the patch layer without starting anything."""

from nnrp_sched_patches import bindings, embedded_model
from nnrp_sched_patches.check import Check
from nnrp_sched_patches.launch import VLLM_IS_MISSING
from nnrp_sched_patches.process_diagnosis import process_checks
from nnrp_sched_patches.seam import verify
from nnrp_sched_patches.serving_seams import SERVING, serving_faults
from nnrp_sched_patches.version import InstalledVllm, installed_vllm


def checks(scheduler: str | None = None) -> list[Check]:
    """Everything the patch layer can tell, in reading order.

    `scheduler` is a `--scheduler-cls` to look at, which is imported for that.
    """
    installed = installed_vllm()
    processes = process_checks(scheduler)
    if installed is None:
        return [Check("vllm", "warning", "not installed", VLLM_IS_MISSING), *processes]
    came_with = f" (distribution {installed.distribution})" if installed.distribution else ""
    return [
        Check("vllm", "ok", f"{installed.version}{came_with} in {installed.root}"),
        _serving(installed),
        *_seams(installed),
        *processes,
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
