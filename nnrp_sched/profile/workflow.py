"""`nnrp.workflow`, `nnrp.priority` and `nnrp.idempotency_key`: who asks, how urgently, and again.

All are declared non-critical extensions of the envelope's `nnrp` object (design, decision 9); a
server that does not know them ignores them.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from nnrp_sched.profile.errors import profile_error

WORKFLOW: Final = "workflow"
PRIORITY: Final = "priority"
IDEMPOTENCY_KEY: Final = "idempotency_key"

MAX_NAME: Final = 256
"""Characters of a program's, agent's or role's name."""
MAX_KEY: Final = 256
"""Characters of an idempotency key."""
PRIORITY_RANGE: Final = (-(2**31), 2**31 - 1)
"""What an engine priority can be; lower is sooner."""

MAX_COUNT: Final = 2**53
"""The largest number; larger integers do not survive JSON readers that use doubles."""

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
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


def parse_idempotency_key(extensions: dict[str, Any]) -> str | None:
    """The idempotency key among the extensions of an envelope. Raises `ProfileError`.

    Null is refused too: whoever writes the member counts on being recognized.
    """
    if IDEMPOTENCY_KEY not in extensions:
        return None
    found: str = _convert(extensions[IDEMPOTENCY_KEY], Key, IDEMPOTENCY_KEY)
    return found


def _convert(value: Any, kind: Any, name: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise profile_error("invalid_nnrp_policy", f"`nnrp.{name}`: {error}") from error
