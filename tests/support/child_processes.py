"""What a child process finds of the patch layer, told to its parent; spawn can pickle it."""

import importlib
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nnrp_sched_patches import install, plugin


def as_vllm_process(told: Connection, folder: Path, orders: Connection) -> None:
    """Live as one of vLLM's processes, over the stand-in package `vllm` in `folder`.

    Tells its status at its start, after vLLM loaded the plugins, after it imported its modules, and
    after each order: `deactivate`, `status`; `end` ends it.
    """
    sys.path.insert(0, str(folder))
    told.send(_status())
    plugin.load()
    told.send(_status())
    for module in sorted({place.partition(":")[0] for place in _status()["hooks"]}):
        importlib.import_module(module)
    told.send(_status())
    while (order := orders.recv()) != "end":
        if order == "deactivate":
            install.deactivate()
        told.send(_status())


def _status() -> dict[str, Any]:
    now = install.status()
    return {
        "active": now.active,
        "pid": (now.pid, os.getpid()),
        "binding": now.binding,
        "hooks": {hook.place: hook.state for hook in now.hooks},
    }
