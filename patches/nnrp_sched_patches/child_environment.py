"""The environment that vLLM's processes get from us, put back when they are gone."""

import logging
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points

from nnrp_sched.errors import StartError, UnsupportedVllm
from nnrp_sched_patches.plugin import PATCH_VARIABLE

_LOGGER = logging.getLogger(__name__)

PLUGINS_VARIABLE = "VLLM_PLUGINS"
RUST_FRONTEND_VARIABLE = "VLLM_USE_RUST_FRONTEND"
ENTRY_POINT_GROUP = "vllm.general_plugins"
ENTRY_POINT = "nnrp_sched"

DEFAULTS = {
    # As vLLM's own command line sets it.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Data goes to stdout, logs to stderr (design, 5); vLLM's default is stdout.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}
"""Set where the user did not."""


def patch_variables() -> dict[str, str]:
    """What makes vLLM's processes load the layer.

    Raises UnsupportedVllm for vLLM's Rust frontend, which runs no Python that could be patched, and
    StartError when the package was not installed with its entry point.
    """
    if os.environ.get(RUST_FRONTEND_VARIABLE, "0") not in ("", "0"):
        raise UnsupportedVllm(
            f"{RUST_FRONTEND_VARIABLE} is set: vLLM's Rust frontend cannot be patched; unset it,"
            " or run without --patch-vllm"
        )
    if ENTRY_POINT not in entry_points(group=ENTRY_POINT_GROUP).names:
        raise StartError(
            f"the entry point {ENTRY_POINT} of {ENTRY_POINT_GROUP} is not installed, so that the"
            " engine process would never load the patches; install nnrp-sched with pip"
        )
    return {PATCH_VARIABLE: "1", **_plugin_allowance()}


def _plugin_allowance() -> dict[str, str]:
    """`VLLM_PLUGINS` is a list of those allowed, by name; the empty text allows none."""
    allowed = os.environ.get(PLUGINS_VARIABLE)
    if allowed is None or ENTRY_POINT in allowed.split(","):
        return {}
    extended = ",".join([*filter(None, allowed.split(",")), ENTRY_POINT])
    _LOGGER.warning(
        "%s=%r does not name %s and would hide the patches from the engine process;"
        " it is %r for this run",
        PLUGINS_VARIABLE,
        allowed,
        ENTRY_POINT,
        extended,
    )
    return {PLUGINS_VARIABLE: extended}


@contextmanager
def applied(forced: Mapping[str, str], defaults: Mapping[str, str]) -> Generator[None]:
    """Set `forced`, and of `defaults` what is not set yet; put everything back on leaving."""
    wanted = {name: value for name, value in defaults.items() if name not in os.environ} | dict(
        forced
    )
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
