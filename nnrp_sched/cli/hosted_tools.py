"""Tools of a Python module, for the commands that serve some."""

import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from operator import attrgetter
from typing import Any, cast

import click

from nnrp_sched.engine.tool_port import ToolHost
from nnrp_sched.errors import StartError

MAX_OUTPUT_BYTES = 1024 * 1024
MAX_SECONDS = 600.0
"""Bounds of one call, where nobody asks for others."""

tools_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--tools",
    metavar="MODULE:TOOLS",
    help="Host the tools of a Python module too, as `nnrp-sched tool-host` does. Default: none.",
)


def tool_host(
    text: str, *, output_bytes: int = MAX_OUTPUT_BYTES, seconds: float = MAX_SECONDS
) -> ToolHost:
    """The host of the tools that MODULE:TOOLS names: a tool, an async function, or several.

    Modules of the current folder count. Raises `UsageError` for another form, `StartError` when
    there is no such module or it cannot be imported, and `ToolDefinitionError`.
    """
    try:
        from nnrp_sched_orchestrator.tool_call import ToolLimits
        from nnrp_sched_orchestrator.tool_host import LocalToolHost
    except ImportError as error:
        raise StartError(f"the orchestrator is not installed: {error}") from error

    limits = ToolLimits(output_bytes=output_bytes, seconds=seconds)
    return LocalToolHost(_several(_found(text)), limits)


def _found(text: str) -> Any:
    name, _, path = text.partition(":")
    if not name or not path:
        raise click.UsageError(
            f"{text!r} is not MODULE:TOOLS, such as my_tools:TOOLS for the list TOOLS of "
            "my_tools.py"
        )
    sys.path.insert(0, os.getcwd())
    try:
        module = import_module(name)
    except Exception as error:
        # The user's own code runs here, and may fail in any way.
        raise StartError(f"cannot import {name}: {type(error).__name__}: {error}") from error
    try:
        return attrgetter(path)(module)
    except AttributeError as error:
        raise StartError(f"the module {name} ({module.__file__}) has no {path}") from error


def _several(found: Any) -> Any:
    from nnrp_sched_orchestrator.tools import Tool

    single = isinstance(found, Tool) or not isinstance(found, Iterable)
    return [found] if single else cast("Any", found)
