"""What each agent has had so far, and how evenly that is spread."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

_REMEMBERED: Final = 4096
"""Agents whose service is kept; who had none for longest is forgotten first."""


class _Had(Struct):
    weight: float
    tokens: float = 0.0


class Attained:
    """Service by program and agent."""

    def __init__(self) -> None:
        self._had: OrderedDict[tuple[str, str], _Had] = OrderedDict()

    def add(self, program: str, agent: str, tokens: float, *, weight: float | None = None) -> None:
        """An agent has had so much more; `weight` is its program's, where it is known anew."""
        had = self._had.setdefault((program, agent), _Had(weight or 1.0))
        had.weight = weight or had.weight
        had.tokens += tokens
        self._had.move_to_end((program, agent))
        if len(self._had) > _REMEMBERED:
            self._had.popitem(last=False)

    def of(self, program: str, agent: str) -> float:
        """What an agent has had."""
        had = self._had.get((program, agent))
        return had.tokens if had is not None else 0.0

    def jain(self, agents: Collection[tuple[str, str]] | None = None) -> float:
        """Jain's index of what these agents, or all, have had of what they are entitled to.

        That is an equal part of their program's weight. From 1/n, where one has all, to 1, where
        everybody has as much. It tells something of agents that always had something to ask: who
        asks less gets less.
        """
        known = {who: self._had.get(who, _Had(1.0)) for who in agents or self._had}
        sizes = Counter(program for program, _ in known)
        return jain_index(
            had.tokens * sizes[program] / had.weight for (program, _), had in known.items()
        )


def jain_index(values: Iterable[float]) -> float:
    """Jain's fairness index: the square of the sum by n times the sum of the squares."""
    found = list(values)
    squares = sum(value * value for value in found)
    return sum(found) ** 2 / (len(found) * squares) if squares else 1.0
