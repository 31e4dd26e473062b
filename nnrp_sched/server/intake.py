"""From a submitted document to an operation that is ready to run."""

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
from msgspec import Struct

from nnrp_sched.engine.port import Engine
from nnrp_sched.engine.records import Caller
from nnrp_sched.errors import ProfileError
from nnrp_sched.observe.observers import Observers
from nnrp_sched.observe.record import TraceObservation
from nnrp_sched.profile import (
    ControlRequest,
    RequestEnvelope,
    parse_control,
    parse_envelope,
    profile_error,
)
from nnrp_sched.profile.workflow import parse_idempotency_key, parse_workflow
from nnrp_sched.server import control
from nnrp_sched.server.admission import Admission
from nnrp_sched.server.control_operation import ControlOperation
from nnrp_sched.server.desk import Desk
from nnrp_sched.server.directory import Directory
from nnrp_sched.server.ending import Asked, Ending
from nnrp_sched.server.engine_calls import EngineCall, OwnCall
from nnrp_sched.server.key_table import KeyTable
from nnrp_sched.server.limits import ServerLimits
from nnrp_sched.server.observation import Observation, Submitted
from nnrp_sched.server.operation import Operation
from nnrp_sched.server.principal import Principal, operation_name
from nnrp_sched.server.priority import submit_priority
from nnrp_sched.server.terminal import FAULT, OperationChannel
from nnrp_sched.server.time_limits import TimeLimits
from nnrp_sched.server.tool_calls import ToolCalls
from nnrp_sched.server.trace import OperationTrace
from nnrp_sched.wire import SubmitReceived, TraceContext

_LOGGER = logging.getLogger(__name__)

CHATS = frozenset({"chat.completions.create"})
"""Level 1 of the profile (seed 003, section 4)."""


class LiveOperation(Protocol):
    """What a session knows of its operations."""

    @property
    def endless(self) -> bool:
        """Whether it ends only when told to."""
        ...

    @property
    def times(self) -> TimeLimits:
        """When it has to end."""
        ...

    def stop(self, ending: Ending, diagnostic: str = "", asked: Asked | None = None) -> None:
        """End it; its terminal follows. A drop says `diagnostic` instead of its usual words.

        `asked` is what the peer's message told of itself, when there was one.
        """
        ...

    def take_trace(self, context: TraceContext) -> None:
        """A trace context of its own came."""
        ...

    async def run(self) -> None:
        """Do the work and send the one terminal."""
        ...


class Admitted(Struct, frozen=True):
    """An operation that has its place in the server."""

    operation: LiveOperation
    release: Callable[[], None]
    """Gives the place back; to be called once the operation has ended."""


class Shared(Struct, frozen=True):
    """What the connections of one server have in common."""

    engine: Engine
    limits: ServerLimits
    admission: Admission
    directory: Directory
    keys: KeyTable
    tools: ToolCalls
    observers: Observers = Observers()
    wall_clock: Callable[[], float] = time.time
    """Seconds since 1970, as DEADLINE and EXPIRE_AT count."""
    connection_ids: Iterator[int] = msgspec.field(default_factory=lambda: itertools.count(1))
    token: bytes | None = None
    """What a client has to say, unless its carrier has made sure of it."""


class Intake:
    """Takes in the submits of one connection."""

    def __init__(
        self, shared: Shared, principal: Principal, transport: str, connection_id: int
    ) -> None:
        self._shared = shared
        self._principal = principal
        self._connection_id = connection_id
        self._transport = transport
        self._desk = Desk(
            shared.engine,
            shared.directory,
            principal,
            abort_seconds=shared.limits.abort_seconds,
            operations_behind=shared.keys.operations,
            extensions=shared.tools.extensions,
        )

    def observation(self, event: SubmitReceived, default: TraceObservation | None) -> Observation:
        """What will be known of a submit; `default` is its session's trace context."""
        submitted = Submitted(
            session_id=event.session_id,
            frame_id=event.frame_id,
            operation_id=event.operation_id,
            header_trace_id=event.trace_id,
            transport=self._transport,
            connection_id=self._connection_id,
        )
        shared = self._shared
        trace = OperationTrace(default)
        return Observation(submitted, trace, shared.engine.description, shared.observers)

    def admit(
        self,
        event: SubmitReceived,
        session_class: int,
        channel: OperationChannel,
        observation: Observation,
    ) -> Admitted:
        """The operation of a submit; raises `ProfileError` to refuse it."""
        try:
            return self._admit(event, session_class, channel, observation)
        except ProfileError:
            raise
        except Exception as fault:
            # One submit that we fail over must not take the others down.
            _LOGGER.exception("a submit failed inside the server")
            raise profile_error("adapter_runtime_error", FAULT) from fault

    def _admit(
        self,
        event: SubmitReceived,
        session_class: int,
        channel: OperationChannel,
        observation: Observation,
    ) -> Admitted:
        if event.fault is not None:
            raise profile_error(event.fault.code, event.fault.message)
        try:
            envelope = parse_envelope(event.document, CHATS)
        except ProfileError as error:
            if error.code != "unsupported_schema_version":
                raise
            own = self._own(event, channel, observation)
            if own is None:
                raise
            return own
        shared = self._shared
        workflow = parse_workflow(envelope.extensions)
        name = operation_name(event.session_id, event.frame_id)
        caller = Caller(workflow.program, workflow.agent, workflow.parent, name)
        priority = submit_priority(envelope, session_class, shared.engine.description)
        derived = f"nnrp-{event.operation_id}-{event.frame_id}"
        request_id = shared.admission.admit(envelope.request_id or derived)
        call: EngineCall | None = None
        try:
            call = self._engine_call(envelope, request_id, name)
            operation = Operation(
                request_id,
                envelope,
                call,
                channel,
                caller=caller,
                priority=priority,
                abort_seconds=shared.limits.abort_seconds,
                observation=observation,
            )
            observation.admitted(request_id, caller, envelope.body)
            shared.directory.add(operation)
        except Exception:
            if call is not None:
                call.close()
            shared.admission.release(request_id)
            raise

        def release() -> None:
            shared.directory.remove(operation)
            operation.call.close()
            shared.admission.release(request_id)

        return Admitted(operation, release)

    def _engine_call(self, envelope: RequestEnvelope, request_id: str, name: str) -> EngineCall:
        """The call of the request's key, or without one a call of its own."""
        key = parse_idempotency_key(envelope.extensions)
        shared = self._shared
        if key is None:
            return OwnCall(shared.engine, request_id, name)
        principal = self._principal.identity
        return shared.keys.attach(
            principal, key, envelope.body, request_id=request_id, operation=name
        )

    def _own(
        self, event: SubmitReceived, channel: OperationChannel, observation: Observation
    ) -> Admitted | None:
        """The operation of a request of this project's own schemas; None when it is none."""
        request = parse_control(event.document, control.OPERATIONS)
        if request is not None:
            observation.withdraw()
            return self._control(request, channel)
        shared = self._shared
        asked = shared.tools.request(event.document)
        if asked is None:
            return None
        observation.withdraw()
        name = operation_name(event.session_id, event.frame_id)
        seconds = shared.limits.abort_seconds
        return Admitted(*shared.tools.operation(asked, channel, name, stop_seconds=seconds))

    def _control(self, request: ControlRequest, channel: OperationChannel) -> Admitted:
        admission = self._shared.admission
        operation = ControlOperation(
            request, self._desk, channel, seconds=self._shared.limits.control_seconds
        )
        admission.admit_control()
        return Admitted(operation, admission.release_control)
