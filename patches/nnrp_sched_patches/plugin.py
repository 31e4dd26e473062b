"""The entry point `vllm.general_plugins`: vLLM calls `load` in every process it starts.

Nothing is imported here beyond `os`: without the variable, having this package installed must cost
a vLLM process one function call and no more.
"""

import os

PATCH_VARIABLE = "NNRP_SCHED_PATCH"
"""`1` asks the vLLM processes that inherit it to activate the layer."""

STRICT_VARIABLE = "NNRP_SCHED_PATCH_STRICT"
"""`1` makes a process that cannot be patched fail to start instead of running unpatched."""


def load() -> None:
    """Activate the layer in this process if `NNRP_SCHED_PATCH=1`; otherwise return at once.

    A process that does not fit says so in its log and stays unpatched: the parent finds it by the
    hello that it does not answer. Only with `NNRP_SCHED_PATCH_STRICT=1` does the error go up into
    vLLM, which then does not start.
    """
    if os.environ.get(PATCH_VARIABLE) != "1":
        return
    strict = os.environ.get(STRICT_VARIABLE) == "1"
    try:
        from nnrp_sched_patches.install import activate

        activate(strict=strict)
    except Exception as error:
        if strict:
            raise
        import logging

        logging.getLogger(__name__).error(
            "vLLM process %d runs without the nnrp-sched patches: %s", os.getpid(), error
        )
