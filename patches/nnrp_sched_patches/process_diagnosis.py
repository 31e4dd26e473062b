"""What decides whether vLLM's processes get patched, and beside whom: a finding for each.

Reads the environment and the installed distributions; starts nothing.
"""

import os
from importlib.metadata import distributions, entry_points

from nnrp_sched_patches.check import Check
from nnrp_sched_patches.child_environment import (
    DEFAULTS,
    ENTRY_POINT,
    ENTRY_POINT_GROUP,
    PLUGINS_VARIABLE,
    RUST_FRONTEND_VARIABLE,
    applied,
)
from nnrp_sched_patches.plugin import PATCH_VARIABLE, STRICT_VARIABLE
from nnrp_sched_patches.scheduler_fit import ADVICE, scheduler_problem

START_METHOD_VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"

WRAPPING_TOOLS = ("agentinfer", "ddtrace", "tapm-instrumentation-vllm")
"""Distributions that are known to wrap the same classes of vLLM's (hooks.md 6)."""


def process_checks(scheduler: str | None) -> list[Check]:
    """Everything that can be told before vLLM starts; `scheduler` is a `--scheduler-cls`."""
    return [
        _entry_point(),
        _activation(),
        _allow_list(),
        _frontend(),
        _start_method(),
        _api_servers(),
        _other_tools(),
        _scheduler(scheduler),
    ]


def _entry_point() -> Check:
    """Whether vLLM's processes would load the layer, were it asked for."""
    found = f"entry point {ENTRY_POINT} in {ENTRY_POINT_GROUP}"
    if ENTRY_POINT not in entry_points(group=ENTRY_POINT_GROUP).names:
        return Check("plugin", "failed", f"no {found}", "install this package with pip")
    return Check(
        "plugin",
        "ok",
        f"{found}; inert without {PATCH_VARIABLE}=1, and in effect once in a process however often"
        " vLLM loads it",
    )


def _activation() -> Check:
    asked = os.environ.get(PATCH_VARIABLE)
    if asked is None:
        return Check(
            "activation",
            "ok",
            f"{PATCH_VARIABLE} is not set: a vLLM started from here is not patched, but for one of"
            " `nnrp-sched run --patch-vllm`",
        )
    if asked != "1":
        return Check(
            "activation",
            "warning",
            f"{PATCH_VARIABLE}={asked!r} activates nothing",
            f"set {PATCH_VARIABLE}=1, or unset it",
        )
    strict = os.environ.get(STRICT_VARIABLE) == "1"
    misfit = "does not start" if strict else "says so in its log and runs unpatched"
    return Check(
        "activation",
        "ok",
        f"every vLLM started from here is patched in each of its processes; one that does not fit"
        f" {misfit}",
        f"unset {PATCH_VARIABLE} to leave others' vLLM alone;"
        f" {STRICT_VARIABLE}=1 makes a process that does not fit fail",
    )


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
        f"`nnrp-sched run --patch-vllm` adds it by itself; elsewhere add {ENTRY_POINT} to the list,"
        " after a comma and without a space",
    )


def _frontend() -> Check:
    if os.environ.get(RUST_FRONTEND_VARIABLE, "0") in ("", "0"):
        return Check("frontend", "ok", "Python")
    return Check(
        "frontend",
        "warning",
        f"{RUST_FRONTEND_VARIABLE} selects vLLM's Rust frontend, which cannot be patched",
        f"unset {RUST_FRONTEND_VARIABLE}: `nnrp-sched run --patch-vllm` refuses to start with it",
    )


def _start_method() -> Check:
    chosen = os.environ.get(START_METHOD_VARIABLE)
    default = DEFAULTS[START_METHOD_VARIABLE]
    found = f"{chosen} by {START_METHOD_VARIABLE}" if chosen else f"{default}, if vLLM keeps it"
    return Check(
        "start method",
        "ok",
        f"{found}; a spawned process loads the plugin itself, a forked one inherits the hooks:"
        " each answers the hello with what is installed in it",
    )


def _api_servers() -> Check:
    return Check(
        "API servers",
        "ok",
        "`nnrp-sched run` has one, in its own process, and refuses --api-server-count above 1;"
        f" under vLLM's own launcher with {PATCH_VARIABLE}=1 each is patched for itself",
    )


def _other_tools() -> Check:
    points = entry_points(group=ENTRY_POINT_GROUP)
    # vLLM brings some itself.
    names = {point.name for point in points if not point.value.startswith("vllm.")}
    found = sorted(f"plugin {name}" for name in names - {ENTRY_POINT})
    installed = {part.metadata["Name"].lower() for part in distributions() if part.metadata["Name"]}
    found += [f"distribution {name}" for name in WRAPPING_TOOLS if name in installed]
    if not found:
        return Check("other tools in vLLM", "ok", "none known")
    return Check(
        "other tools in vLLM",
        "ok",
        ", ".join(found),
        "they may wrap what we wrap: what was there before ours stays and is restored by identity;"
        " over ours, ours is left in place and switched off when it is deactivated, and status()"
        " names it; deactivate again once the tool is gone",
    )


def _scheduler(path: str | None) -> Check:
    if path is None:
        return Check(
            "scheduler",
            "ok",
            "vLLM's own; one of yours (--scheduler-cls) works when it derives from vLLM's and calls"
            " it, and is refused by name otherwise",
            "nnrp-sched doctor --scheduler-cls module.Class looks at one",
        )
    try:
        # It may import vLLM, which would log to stdout.
        with applied({}, DEFAULTS):
            problem = scheduler_problem(path)
    except (ImportError, AttributeError, ValueError) as error:
        return Check(
            "scheduler",
            "failed",
            f"{path} cannot be imported: {error}",
            "write module.Class, and put the module's folder into PYTHONPATH",
        )
    if problem is None:
        return Check("scheduler", "ok", f"{path} passes on all that the hooks watch")
    return Check("scheduler", "failed", problem, ADVICE)
