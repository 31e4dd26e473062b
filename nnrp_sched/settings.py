"""One table of the variables this project reads, and typed access to them.

Flags of the command line have variables of their own, `NNRP_SCHED_<COMMAND>_<FLAG>`, which click
derives; the table here holds what is read outside the command line.
"""

import os
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct


class Variable(Struct, frozen=True):
    """One environment variable."""

    name: str
    default: str
    meaning: str


PATCH = Variable(
    "NNRP_SCHED_PATCH", "", "`1` lets the plugin patch the vLLM process it is loaded in"
)
PATCH_STRICT = Variable(
    "NNRP_SCHED_PATCH_STRICT",
    "",
    "`1` makes a vLLM process that cannot be patched fail instead of staying unpatched",
)
ENGINE = Variable(
    "NNRP_SCHED_ENGINE", "required", "`absent` deselects the tests that need a real vLLM engine"
)

VARIABLES: tuple[Variable, ...] = (PATCH, PATCH_STRICT, ENGINE)
"""Every variable, in the order `doctor` prints them."""

Source = Literal["environment", "default"]


def value(variable: Variable, environment: Mapping[str, str] = os.environ) -> tuple[str, Source]:
    """What a variable is set to, and whether that comes from the environment or the default."""
    if variable.name in environment:
        return environment[variable.name], "environment"
    return variable.default, "default"
