"""A line in the log for each ended operation."""

import json
import logging
from typing import Any, Final

from nnrp_sched.observe.diagnostics import diagnostics
from nnrp_sched.observe.record import OperationRecord

NAME: Final = "nnrp_operation_observation"
"""How each line begins, as the adapter's does."""

_LOGGER: Final = logging.getLogger("nnrp_sched.operation")


class _Facts:
    """Facts that become JSON only when a handler writes them."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    def __str__(self) -> str:
        return json.dumps(self._facts, separators=(",", ":"), sort_keys=True)


def log_operation(record: OperationRecord) -> None:
    """Log what is known of an operation, at level info.

    Never its contents: no prompt, no answer, no message of an error, no attribute of a trace. The
    facts are in the record's `observation` too, for formatters that write JSON themselves.
    """
    if _LOGGER.isEnabledFor(logging.INFO):
        facts = diagnostics(record)
        _LOGGER.info("%s %s", NAME, _Facts(facts), extra={"observation": facts})
