"""The live NNRP operations of one server by the ids that users see."""

from typing import Literal

from nnrp_sched.server.operation import Operation


class Directory:
    """Finds operations across connections; holds none that has ended."""

    def __init__(self) -> None:
        self._operations: dict[str, Operation] = {}

    def __len__(self) -> int:
        return len(self._operations)

    def add(self, operation: Operation) -> None:
        """Note an operation that starts."""
        self._operations[operation.name] = operation

    def remove(self, operation: Operation) -> None:
        """Forget an operation that ended."""
        self._operations.pop(operation.name, None)

    def get(self, name: str) -> Operation | None:
        """The live operation of an id."""
        return self._operations.get(name)

    def of(self, by: Literal["program", "agent"], name: str) -> list[Operation]:
        """The live operations of a program or an agent."""
        return [each for each in self._operations.values() if getattr(each.caller, by) == name]
