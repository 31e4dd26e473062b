"""The envelope of `nnrp-sched-tools/1`: what tools a host has, and calls of them.

    tools.list   →  completed {"tools": [description, …]}
    tools.call   →  tool_output.delta*  completed {answer}
    its cancel   →  tool_output.delta*  tool_stopped {receipt}  cancelled

A tool that fails has answered; an error ends only calls that no tool was run for.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from nnrp_sched.profile.json_values import JsonObject
from nnrp_sched.profile.own_requests import OwnRequest, build_own, parse_own

TOOLS_SCHEMA: Final = "nnrp-sched-tools/1"
TOOLS_LIST: Final = "tools.list"
TOOLS_CALL: Final = "tools.call"
TOOLS_OPERATIONS: Final = frozenset({TOOLS_LIST, TOOLS_CALL})

MAX_TOOL_NAME: Final = 64
"""Characters; as OpenAI has it."""
MAX_TOOLS: Final = 1024
"""Of one host."""
MAX_ARGUMENTS: Final = 4 * 1024 * 1024
"""Characters of a call's arguments."""

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]+\Z", max_length=MAX_TOOL_NAME)]


class ToolDescription(Struct, frozen=True):
    """A tool, as models get to know it."""

    name: ToolName
    description: str
    parameters: JsonObject
    """The JSON schema of its arguments, an object's."""


class ToolList(Struct, frozen=True):
    """What answers tools.list."""

    tools: Annotated[tuple[ToolDescription, ...], Meta(max_length=MAX_TOOLS)]


class CallBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """tools.call."""

    name: ToolName
    arguments: Annotated[str, Meta(max_length=MAX_ARGUMENTS)] = "{}"
    """JSON text, as the model wrote it."""
    call_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """The caller's, for the host's log."""
    max_output_bytes: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """How much output the caller wants at most; the host has a limit of its own."""
    max_seconds: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """How long it waits at most; the host has a limit of its own."""


class ToolAnswer(Struct, frozen=True, omit_defaults=True):
    """How a call ended by itself; what it put out came before."""

    status: Literal["completed", "failed"]
    message: str = ""
    """Why it failed, for models and for people."""
    output_bytes: Annotated[int, Meta(ge=0)] = 0
    """Of UTF-8 text that it put out."""
    dropped_bytes: Annotated[int, Meta(ge=0)] = 0
    """How many of them were left out, beyond the limit."""
    exit_code: int | None = None
    """A process's; below 0 it was ended by that signal."""
    stderr: str = ""
    """The end of what a process wrote there."""


def build_tools(operation: str, body: dict[str, Any]) -> bytes:
    """Write the document a client submits."""
    return build_own(TOOLS_SCHEMA, operation, body)


def parse_tools(document: bytes) -> OwnRequest | None:
    """Read a request for tools; the rest is as for `parse_own`."""
    return parse_own(document, TOOLS_SCHEMA, TOOLS_OPERATIONS)
