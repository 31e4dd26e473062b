"""The labels that metrics carry: few, and each with a known set of values.

Whoever can name a label's value freely can make a metrics server run out of memory. So no ids, no
models and no names of agents; and what is not in a table here is `other`.
"""

from collections.abc import Mapping
from typing import Final

from nnrp_sched.observe.diagnostics import diagnostics
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.profile.errors import PROFILE_ERRORS

OTHER: Final = "other"
NONE: Final = "none"

VALUES: Final[Mapping[str, frozenset[str]]] = {
    "source": frozenset({"nnrp", "http"}),
    "transport": frozenset({"tcp", "tls", "unix", "websocket", "quic", "memory"}),
    "outcome": frozenset({"completed", "failed", "cancelled", "dropped", "silent"}),
    "error": frozenset(PROFILE_ERRORS) | {"refused"},
    "cancellation": frozenset(
        {
            *("cancel", "abort", "supersede", "timeout", "deadline_expired", "budget_exceeded"),
            *("slow_reader", "server_shutdown", "session_drain", "session_closing"),
            "peer_disconnect",
        }
    ),
    "accepted": frozenset({"true", "false", "unknown"}),
}
"""What each label may be, beside `other` and `none`."""


def bounded(label: str, value: str | None) -> str:
    """A value that the label may have: itself, `other`, or `none` for no value."""
    if value is None:
        return NONE
    return value if value in VALUES[label] else OTHER


def operation_labels(record: OperationRecord) -> dict[str, str]:
    """The labels of an operation's counter."""
    return {
        "source": bounded("source", record.source),
        "transport": bounded("transport", record.transport),
        "outcome": bounded("outcome", record.outcome),
        "error": bounded("error", record.error_code),
    }


def abort_labels(record: OperationRecord) -> dict[str, str] | None:
    """The labels of an abort's counter; None when nobody asked for one."""
    if record.abort is None:
        return None
    facts = diagnostics(record)
    accepted = facts["backend_abort_accepted"]
    return {
        "source": bounded("source", record.source),
        "cancellation": bounded("cancellation", facts["cancellation_kind"]),
        "accepted": "unknown" if accepted is None else str(accepted).lower(),
    }
