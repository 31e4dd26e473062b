"""Who is told of ended operations. An observer that fails harms nothing and nobody else."""

import logging
from collections.abc import Callable, Iterable

from nnrp_sched.observe.record import OperationRecord

_LOGGER = logging.getLogger(__name__)

Observer = Callable[[OperationRecord], None]
"""Gets the record of each operation, once, after its terminal. Must not block."""


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self._failed: set[int] = set()
        self.failures = 0
        """How often an observer raised."""

    def __bool__(self) -> bool:
        return bool(self._observers)

    def __call__(self, record: OperationRecord) -> None:
        """Tell everyone; what an observer raises is logged the first time and counted."""
        for index, observer in enumerate(self._observers):
            try:
                observer(record)
            except Exception:
                # Exporters are others' code, and the operation they are told of was served well.
                self.failures += 1
                if index not in self._failed:
                    self._failed.add(index)
                    _LOGGER.exception("an observer of operations failed; told once")
