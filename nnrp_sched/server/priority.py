"""From NNRP's priority classes to the engine's numbers."""

from typing import Final

from nnrp_sched.engine.records import EngineDescription
from nnrp_sched.profile import RequestEnvelope
from nnrp_sched.profile.workflow import PRIORITY_RANGE, parse_priority
from nnrp_sched.wire import PriorityClass

PRIORITY_POLICY: Final = "priority"
"""The only scheduling policy under which priorities mean something."""


def engine_priority(priority_class: int, delta: int = 0) -> int:
    """The engine priority of a class and a delta; lower is sooner.

    Class plus delta, as the published adapter has it, with `balanced` at the engine's own default
    of 0, so that operations without a wish and HTTP requests are equals.
    """
    lowest, highest = PRIORITY_RANGE
    return max(lowest, min(highest, priority_class - PriorityClass.BALANCED + delta))


def takes_priorities(description: EngineDescription) -> bool:
    """Whether an engine orders its queue by priority."""
    return description.priority_policy == PRIORITY_POLICY


def submit_priority(
    envelope: RequestEnvelope, session_class: int, description: EngineDescription
) -> int:
    """The engine priority of a new operation.

    `nnrp.priority` is the engine's number itself; without it the body's own `priority` counts, and
    without that the session's class. An engine that orders by arrival gets 0, and `nnrp.priority`
    is then an unknown extension, which is ignored. Raises `ProfileError` for an ill-typed one.
    """
    if not takes_priorities(description):
        return 0
    wished = parse_priority(envelope.extensions)
    if wished is not None:
        return wished
    if "priority" in envelope.body:
        # Ill-typed ones are the engine's to refuse: the body reaches it as the client wrote it.
        own = envelope.body["priority"]
        return own if type(own) is int else 0
    return engine_priority(session_class)
