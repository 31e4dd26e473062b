"""The flows of a fair queue: programs, and in each of them agents, with what they had so far."""

from collections import Counter, OrderedDict
from collections.abc import Collection
from typing import Generic, TypeVar

from msgspec import Struct

Payload = TypeVar("Payload")

Lane = str | None
"""Where an item can be served: only there, or with None anywhere."""


class Item(Struct, Generic[Payload], eq=False):
    """Something that waits."""

    number: int
    """Counts up as items arrive."""
    program: str
    agent: str
    lane: Lane
    cost: float
    payload: Payload


class AgentFlow(Generic[Payload]):
    """What waits for one agent, oldest first in each lane."""

    def __init__(self, counter: float, order: int) -> None:
        """`counter` is what it has had, on its program's virtual time; `order` decides ties."""
        self.counter = counter
        self.order = order
        self.size = 0
        self._lanes: dict[Lane, OrderedDict[int, Item[Payload]]] = {}

    @property
    def turn(self) -> tuple[float, int]:
        """Who has had the least is next."""
        return self.counter, self.order

    @property
    def lanes(self) -> Collection[Lane]:
        """The lanes in which something waits."""
        return self._lanes.keys()

    def add(self, item: Item[Payload]) -> None:
        """Sort an item in by its number."""
        lane = self._lanes.setdefault(item.lane, OrderedDict())
        late = bool(lane) and next(reversed(lane)) > item.number
        lane[item.number] = item
        self.size += 1
        if late:  # It waits again, or comes from another lane: both are rare.
            self._lanes[item.lane] = OrderedDict(sorted(lane.items()))

    def remove(self, item: Item[Payload]) -> None:
        """Take an item out."""
        lane = self._lanes[item.lane]
        del lane[item.number]
        self.size -= 1
        if not lane:
            del self._lanes[item.lane]

    def first(self, lanes: Collection[Lane]) -> Item[Payload]:
        """The oldest item in any of these lanes, of which one at least is not empty."""
        heads = (next(iter(self._lanes[lane].values())) for lane in self._lanes if lane in lanes)
        return min(heads, key=lambda item: item.number)

    def items(self) -> list[Item[Payload]]:
        """All that waits, oldest first."""
        found = [item for lane in self._lanes.values() for item in lane.values()]
        return sorted(found, key=lambda item: item.number)


class ProgramFlow(Generic[Payload]):
    """What waits for one program, by agent."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.counter = 0.0
        """What it has had by its weight, on the queue's virtual time."""
        self.order = 0
        self.time = 0.0
        """The virtual time of its agents: what one of them has had that never had to wait."""
        self.agents: dict[str, AgentFlow[Payload]] = {}
        """Those for whom something waits."""
        self.lanes: Counter[Lane] = Counter()
        """How much waits in each lane."""

    @property
    def turn(self) -> tuple[float, int]:
        """Who has had the least is next."""
        return self.counter, self.order

    def open_in(self, lanes: Collection[Lane]) -> bool:
        """Whether anything waits in these lanes."""
        return any(self.lanes[lane] for lane in lanes)

    def pick(self, lanes: Collection[Lane]) -> Item[Payload]:
        """The item whose turn it is among those in these lanes, of which there is one at least."""
        able = (flow for flow in self.agents.values() if any(lane in flow.lanes for lane in lanes))
        return min(able, key=lambda flow: flow.turn).first(lanes)

    def items(self) -> list[Item[Payload]]:
        """All that waits, in the order of its turns."""
        turns: list[tuple[float, int, int, Item[Payload]]] = []
        for flow in self.agents.values():
            counter = flow.counter
            for item in flow.items():
                turns.append((counter, flow.order, item.number, item))
                counter += item.cost
        return [item for *_, item in sorted(turns, key=lambda turn: turn[:3])]
