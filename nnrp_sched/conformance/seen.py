"""What a case brought to light."""

from msgspec import Struct, field

from nnrp_sched.conformance.recipe import Outcome
from nnrp_sched.profile.json_values import JsonObject


class Seen(Struct):
    """Everything that a case showed, as it came; the judge decides what to make of it."""

    events: list[JsonObject] = field(default_factory=list[JsonObject])
    """The profile's events in their order, the terminal document included; nothing is made up."""
    terminal: Outcome | None = None
    """What ended the operation; None when nothing did in time."""
    status_code: int | None = None
    drop_reason: str | None = None
    protocol_error: str | None = None
    notices: list[str] = field(default_factory=list[str])
    """Names of the other messages about the operation or its session, before the terminal."""
    faults: list[str] = field(default_factory=list[str])
    """Rules of the profile and the protocol that were broken on the way."""
    milliseconds: float = 0.0
