"""Which trace an operation belongs to, to the letter of seed 000, 8.1.

Pure. A context stays NNRP metadata: it becomes at most one `traceparent`, never a field of a body,
and its attributes are counted but not looked at.
"""

import msgspec

from nnrp_sched.observe.record import TraceObservation, TraceScope
from nnrp_sched.wire import TraceContext, TraceFlag


def observed(context: TraceContext, scope: TraceScope) -> TraceObservation:
    """What is kept of a TRACE_CONTEXT: its fixed metadata, whatever the values."""
    return TraceObservation(
        trace_id=context.trace_id,
        span_id=context.span_id,
        parent_span_id=context.parent_span_id,
        stage_code=context.stage,
        flags=context.flags,
        attribute_bytes=context.body_bytes,
        scope=scope,
    )


def traceparent(context: TraceObservation | None) -> str | None:
    """The W3C header of a context; None for one that is not eligible (8.1, rules 1, 2 and 4).

    The 64-bit trace id is extended by zeros, and of the flags only `sampled` passes.
    """
    if context is None or not context.trace_id or not context.span_id:
        return None
    sampled = context.flags & TraceFlag.SAMPLED
    return f"00-{0:016x}{context.trace_id:016x}-{context.span_id:016x}-{sampled:02x}"


class OperationTrace:
    """The trace of one operation: a default, replaced by its own context until the dispatch."""

    def __init__(self, default: TraceObservation | None = None) -> None:
        """`default` is the session's context when the operation was admitted."""
        self.observation = default
        """The last context that came, for the record."""
        self._effective = default
        self._dispatched = False

    def receive(self, context: TraceContext) -> None:
        """The operation's own context. After the dispatch it is only recorded."""
        mine = observed(context, "operation")
        if self._dispatched:
            self.observation = msgspec.structs.replace(mine, late=True)
        else:
            self.observation = self._effective = mine

    def dispatch(self) -> str | None:
        """The engine is called now: what it gets, which nothing changes any more."""
        self._dispatched = True
        return self.traceparent

    @property
    def traceparent(self) -> str | None:
        """The operation's W3C parent as of now, or as of the dispatch."""
        return traceparent(self._effective)
