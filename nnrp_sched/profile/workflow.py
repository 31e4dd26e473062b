"""`nnrp.workflow` and `nnrp.priority`: who asks and how urgently (design, decision 9).

Both are declared non-critical extensions of the envelope's `nnrp` object; a server that does not
know them ignores them.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from nnrp_sched.profile.errors import profile_error

WORKFLOW: Final = "workflow"
PRIORITY: Final = "priority"

MAX_NAME: Final = 256
"""Characters of a program's, agent's or role's name."""
PRIORITY_RANGE: Final = (-(2**31), 2**31 - 1)
"""What an engine priority can be; lower is sooner."""

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
EnginePriority = Annotated[int, Meta(ge=PRIORITY_RANGE[0], le=PRIORITY_RANGE[1])]


class Workflow(Struct, frozen=True, omit_defaults=True):
    """A request's place in an agent run. Members this version does not know are ignored."""

    program: Name | None = None
    """The agent run as a whole."""
    agent: Name | None = None
    parent: Name | None = None
    """The agent that started this one."""
    step: Name | Count | None = None
    role: Name | None = None
    deadline_ms: Count | None = None
    """Milliseconds within which the program wants the answer."""
    budget_tokens: Count | None = None


def parse_workflow(extensions: dict[str, Any]) -> Workflow:
    """The workflow among the extensions of an envelope; an empty one when there is none.

    Raises `ProfileError` `invalid_nnrp_policy`.
    """
    found: Workflow = _convert(extensions.get(WORKFLOW), Workflow | None, WORKFLOW) or Workflow()
    return found


def parse_priority(extensions: dict[str, Any]) -> int | None:
    """The priority among the extensions of an envelope. Raises `ProfileError`."""
    found: int | None = _convert(extensions.get(PRIORITY), EnginePriority | None, PRIORITY)
    return found


def _convert(value: Any, kind: Any, name: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise profile_error("invalid_nnrp_policy", f"`nnrp.{name}`: {error}") from error
