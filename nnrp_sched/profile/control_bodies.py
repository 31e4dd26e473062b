"""The bodies of control requests: what each operation of `nnrp-sched-control/1` takes."""

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from nnrp_sched.profile.errors import profile_error
from nnrp_sched.profile.workflow import EnginePriority, Name

MAX_IDS: Final = 1024
"""Operations that one request can abort by their ids."""

_Id = Annotated[str, Meta(min_length=1, max_length=512)]


class Nothing(Struct, frozen=True):
    """The body of an operation without arguments; what is in it is ignored."""


class WatchBody(Struct, frozen=True, forbid_unknown_fields=True):
    """queue.watch."""

    per_second: Annotated[float, Meta(ge=0.1, le=50)] = 10.0
    """The most snapshots a second; each differs from the one before."""


class AbortBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """operation.abort: exactly one of the three."""

    ids: Annotated[list[_Id], Meta(min_length=1, max_length=MAX_IDS)] | None = None
    program: Name | None = None
    agent: Name | None = None

    def __post_init__(self) -> None:
        """Check that one of them is given; msgspec reports it as a validation error."""
        if sum(each is not None for each in (self.ids, self.program, self.agent)) != 1:
            raise ValueError("exactly one of `ids`, `program` and `agent` must be given")

    @property
    def by(self) -> Literal["id", "program", "agent"]:
        """Which of them is given."""
        if self.program is not None:
            return "program"
        return "agent" if self.agent is not None else "id"

    @property
    def names(self) -> list[str]:
        """The ids, or the one name."""
        return self.ids or [self.program or self.agent or ""]


class ProgramBody(Struct, frozen=True, forbid_unknown_fields=True):
    """program.cancel."""

    program: Name


class ReprioritizeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """operation.reprioritize; `priority` is the engine's, lower is sooner."""

    id: _Id
    priority: EnginePriority


Body = TypeVar("Body")


def parse_body(body: dict[str, Any], kind: type[Body]) -> Body:
    """Read a control request's body. Raises `ProfileError` `invalid_body`."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise profile_error("invalid_body", f"`body`: {error}") from error
