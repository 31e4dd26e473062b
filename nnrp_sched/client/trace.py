"""A caller's span, as the wire can carry it."""

import re
from typing import Final

from msgspec import Struct

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LOW_64: Final = 2**64 - 1


class SpanReference(Struct, frozen=True):
    """The ids of TRACE_CONTEXT."""

    trace_id: int
    """64 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    flags: int
    """1 when the trace is sampled."""


def parse_traceparent(text: str) -> SpanReference:
    """The span that a W3C `traceparent` names; raises `ValueError` for a malformed one.

    NNRP has 64 bits for a trace id: the low ones go out (wire digest 6-28). A client whose trace
    ids are no longer than that sees one trace from its own span to the engine's.
    """
    found = _TRACEPARENT.fullmatch(text)
    trace_id, span_id, flags = (int(part, 16) for part in found.groups()) if found else (0, 0, 0)
    if not trace_id & _LOW_64 or not span_id:
        raise ValueError(f"{text!r} is not a traceparent of version 00 that NNRP can carry")
    return SpanReference(trace_id & _LOW_64, span_id, flags & 1)
