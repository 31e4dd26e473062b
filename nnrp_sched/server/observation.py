"""Gathers what becomes the record of one operation, from its submit to its terminal."""

import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from nnrp_sched.engine.records import AbortReceipt, Caller, ChatBody, EngineDescription, ServedCall
from nnrp_sched.errors import ProfileError
from nnrp_sched.observe.observers import Observer
from nnrp_sched.observe.record import AbortObservation, Intervals, OperationRecord, Outcome
from nnrp_sched.profile import Completed
from nnrp_sched.profile.envelope import CHAT_COMPLETIONS
from nnrp_sched.profile.json_values import is_array, is_object
from nnrp_sched.server.ending import SOURCES, Asked, Cancelled, Dropped, Ending, Silent
from nnrp_sched.server.principal import operation_name
from nnrp_sched.server.terminal import Verdict
from nnrp_sched.server.trace import OperationTrace
from nnrp_sched.wire import Role

_OUTCOMES: dict[type[Any], Outcome] = {
    Completed: "completed",
    ProfileError: "failed",
    Cancelled: "cancelled",
    Dropped: "dropped",
    Silent: "silent",
}


class Submitted(Struct, frozen=True):
    """Where an operation came from."""

    session_id: int
    frame_id: int
    operation_id: int
    header_trace_id: int
    transport: str
    connection_id: int


class Observation:
    """What is known of an operation so far. Times are monotonic milliseconds."""

    def __init__(
        self,
        submitted: Submitted,
        trace: OperationTrace,
        description: EngineDescription,
        observer: Observer,
        *,
        clock: Callable[[], float] = lambda: time.monotonic_ns() / 1e6,
    ) -> None:
        """`observer` gets the record at the end."""
        self._withdrawn = False
        self.trace = trace
        self._submitted = submitted
        self._description = description
        self._observer = observer
        self._clock = clock
        self._began = clock()
        self._caller = Caller()
        self._request_id: str | None = None
        self._body: ChatBody = {}
        self._dispatched: float | None = None
        self._first_event: float | None = None
        self._last_event: float | None = None
        self._events = 0
        self._event_bytes = 0
        self._longest_interval = 0.0
        self._served = ServedCall()
        self._abort: tuple[Ending, Asked | None, float] | None = None
        self._record: tuple[Verdict, OperationRecord] | None = None
        self._aborted: AbortObservation | None = None

    def admitted(self, request_id: str, caller: Caller, body: ChatBody) -> None:
        """The operation has its place; `body` is the client's."""
        self._request_id, self._caller, self._body = request_id, caller, body

    def withdraw(self) -> None:
        """It is no chat: there will be no record."""
        self._withdrawn = True

    def dispatch(self) -> str | None:
        """The engine is called now; its traceparent."""
        self._dispatched = self._clock()
        return self.trace.dispatch()

    def event_sent(self, size: int) -> None:
        """An event of so many bytes is on its way to the peer."""
        now = self._clock()
        self._events += 1
        self._event_bytes += size
        if self._last_event is None:
            self._first_event = now
        else:
            self._longest_interval = max(self._longest_interval, now - self._last_event)
        self._last_event = now

    def served(self, call: ServedCall) -> None:
        """The engine's last word on the call."""
        self._served = call

    def abort_began(self, ending: Ending, asked: Asked | None = None) -> None:
        """Somebody wants the operation to end; the first one is the abort's reason."""
        if self._abort is None:
            self._abort = (ending, asked, self._clock())

    def abort_ended(self, receipt: AbortReceipt | None) -> None:
        """The engine answered, or nobody waits for its answer any more."""
        if self._abort is not None and self._aborted is None:
            ending, asked, began = self._abort
            self._aborted = AbortObservation(
                ending.value,
                began,
                self._clock(),
                receipt,
                source=_source(ending, asked),
                reason_code=None if asked is None else asked.reason,
            )

    def close(self, final: Verdict) -> OperationRecord:
        """The operation ends like this; what is known of it from now on does not change."""
        if self._record is None or self._record[0] is not final:
            self._record = (final, self._made(final))
        return self._record[1]

    def ended(self, final: Verdict) -> None:
        """The terminal is out: everybody is told."""
        if not self._withdrawn:
            self._observer(self.close(final))

    def _made(self, final: Verdict) -> OperationRecord:
        self.abort_ended(None)
        model = self._body.get("model")
        usage, reasons = _answered(final)
        origin, served, description = self._submitted, self._served, self._description
        error = final if isinstance(final, ProfileError) else None
        return OperationRecord(
            id=operation_name(origin.session_id, origin.frame_id),
            source="nnrp",
            operation="chat",
            profile_operation=CHAT_COMPLETIONS,
            outcome=_OUTCOMES[type(final)],
            began=self._began,
            ended=self._clock(),
            model=model if model in description.models else None,
            engine=description.family,
            binding=description.binding,
            engine_version=description.version,
            request_id=self._request_id,
            transport=origin.transport,
            connection_id=origin.connection_id,
            session_id=origin.session_id,
            frame_id=origin.frame_id,
            operation_id=origin.operation_id,
            header_trace_id=origin.header_trace_id or None,
            program=self._caller.program,
            agent=self._caller.agent,
            parent=self._caller.parent,
            streaming=self._body.get("stream") is True if self._body else None,
            dispatched=self._dispatched,
            first_event=self._first_event,
            events=self._events,
            event_bytes=self._event_bytes,
            intervals=self._intervals(),
            timings=served.timings,
            input_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens", served.tokens),
            finish_reasons=reasons or ((served.reason,) if served.reason else ()),
            error_code=None if error is None else error.code,
            error_family=None if error is None else _family(error),
            drop_reason=final.reason.name.lower() if isinstance(final, Dropped) else None,
            abort=self._aborted,
            trace=self.trace.observation,
            traceparent=self.trace.traceparent,
        )

    def _intervals(self) -> Intervals:
        if self._first_event is None or self._last_event is None:
            return Intervals()
        total = self._last_event - self._first_event
        return Intervals(self._events - 1, total, self._longest_interval)


def _source(ending: Ending, asked: Asked | None) -> str:
    """Who wanted it: as the peer's message says, in words, or else as such endings go."""
    if asked is None or asked.source_role == Role.UNSPECIFIED:
        return SOURCES[ending]
    known = asked.source_role in set(Role)
    return Role(asked.source_role).name.lower() if known else "private"


def _family(error: ProfileError) -> str:
    """The engine's own name for an error of its, else the type that the profile gives it."""
    family = (error.diagnostics or {}).get("backend_error_family")
    return family if isinstance(family, str) else error.error_type


def _answered(final: Verdict) -> tuple[dict[str, int], tuple[str, ...]]:
    """Token counts and finish reasons of a complete answer, as far as it has them."""
    if not isinstance(final, Completed):
        return {}, ()
    usage, choices = final.body.get("usage"), final.body.get("choices")
    counts = usage if is_object(usage) else {}
    answers = choices if is_array(choices) else []
    reasons = [each.get("finish_reason") for each in answers if is_object(each)]
    return (
        {name: count for name, count in counts.items() if isinstance(count, int)},
        tuple(reason for reason in reasons if isinstance(reason, str)),
    )
