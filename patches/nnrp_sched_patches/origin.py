"""Where a request comes from: carried by contextvars from its door to vLLM's admission."""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

from msgspec import Struct

from nnrp_sched.engine.records import Caller, Source
from nnrp_sched_patches.ledger_records import Entry


class Origin(Struct, frozen=True):
    """Who asks, by which door."""

    caller: Caller = Caller()
    source: Source = "http"
    arrived: float | None = None
    """When it came in, in monotonic ms; None for when vLLM's frontend got it."""
    traceparent: str | None = None
    operation: str | None = None
    """What was asked for, as OpenTelemetry's gen_ai conventions name it."""
    entry: Entry | None = None
    """Its entry in the ledger, where the door has made one already."""


_ORIGIN: ContextVar[Origin] = ContextVar("nnrp_sched_origin")
_NOWHERE = Origin()


def current_origin() -> Origin:
    """The origin of what this task does; one without a caller when no door has said so."""
    return _ORIGIN.get(_NOWHERE)


@contextlib.contextmanager
def origin(value: Origin) -> Generator[None]:
    """What is called inside has this origin. Must not be open across a yield to the caller."""
    token = _ORIGIN.set(value)
    try:
        yield
    finally:
        _ORIGIN.reset(token)
