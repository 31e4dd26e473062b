"""A bounded queue that is fair between programs, and within each of them between its agents.

Each flow counts what it has had, and the one with the least is served: at first what an item is
known to cost, later whatever it turns out to cost (`charge`), so nobody has to know beforehand.
This is a deficit round robin whose round is kept as a number, the virtual time (start-time fair
queueing, with the counters of VTC): the same shares and no bursts for large weights; a flow that
comes, or comes back, starts at the virtual time, so it gains nothing by having been away; and as
nothing that happens later changes the order among those that wait but charges and removals, every
position is known in advance. Pure: no clock, no waiting.
"""

import itertools
from collections import OrderedDict
from collections.abc import Collection
from typing import Final, Generic, TypeVar

from nnrp_sched_orchestrator.errors import QueueFull
from nnrp_sched_orchestrator.flows import AgentFlow, Item, Lane, Payload, ProgramFlow

Key = TypeVar("Key")
Kept = TypeVar("Kept")

WEIGHTS: Final = (0.001, 1000.0)
"""The least and the most that a program's weight can be."""
COSTS: Final = (1.0, 1e9)
"""The same for what an item is known to cost."""
_REMEMBERED: Final = 4096
"""Programs for which nothing waits whose counters are kept, and as many agents."""
DEBT_LIMIT: Final = 65_536.0
"""Tokens that a flow may have had more than the others before the rest is forgiven: whoever waits
is served after a bounded number of others."""


class FairQueue(Generic[Payload]):
    """Items of agents of programs, each of them served in one of several lanes."""

    def __init__(self, limit: int, *, debt_limit: float = DEBT_LIMIT) -> None:
        """Hold up to `limit` items."""
        self.limit = limit
        self._debt_limit = debt_limit
        self._numbers = itertools.count()
        self._items: dict[int, Item[Payload]] = {}
        self._programs: dict[str, ProgramFlow[Payload]] = {}
        """Those for whom something waits."""
        self._resting_programs: OrderedDict[str, ProgramFlow[Payload]] = OrderedDict()
        self._resting_agents: OrderedDict[tuple[str, str], float] = OrderedDict()
        """The counters of agents for whom nothing waits, where they are ahead of the others."""
        self._time = 0.0
        self._positions: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def remembered(self) -> int:
        """Flows for which nothing waits that are kept in mind."""
        return len(self._resting_programs) + len(self._resting_agents)

    def add(
        self,
        program: str,
        agent: str,
        payload: Payload,
        *,
        weight: float = 1.0,
        lane: Lane = None,
        cost: float = 1.0,
    ) -> Item[Payload]:
        """Let an item wait; of several weights of a program the last one counts.

        Raises `QueueFull`, and `ValueError` for a weight or a cost outside of its bounds.
        """
        for name, value, (least, most) in (("weight", weight, WEIGHTS), ("cost", cost, COSTS)):
            if not least <= value <= most:
                raise ValueError(f"{name}={value!r} is not from {least:g} to {most:g}")
        if len(self._items) >= self.limit:
            raise QueueFull(self.limit)
        item = Item(next(self._numbers), program, agent, lane, cost, payload)
        self._enter(item).weight = weight
        return item

    def take(self, lanes: Collection[Lane]) -> Item[Payload] | None:
        """The item whose turn it is among those in these lanes; it waits no more."""
        able = [flow for flow in self._programs.values() if flow.open_in(lanes)]
        if not able:
            return None
        program = min(able, key=lambda flow: flow.turn)
        item = program.pick(lanes)
        agent = program.agents[item.agent]
        # The time moves with what is served, so that newcomers never keep anyone from his turn.
        share = item.cost / sum(flow.weight for flow in self._programs.values())
        self._time = max(self._time + share, program.counter)
        program.time = max(program.time + item.cost / len(program.agents), agent.counter)
        program.counter += item.cost / program.weight
        agent.counter += item.cost
        self._leave(item)
        return item

    def remove(self, item: Item[Payload]) -> bool:
        """Forget an item that waits; False when it does not."""
        if item.number not in self._items:
            return False
        self._leave(item)
        return True

    def put_back(self, item: Item[Payload]) -> None:
        """Let an item wait again that was taken for nothing: where it was, and at no cost."""
        program = self._enter(item)
        program.counter -= item.cost / program.weight
        program.agents[item.agent].counter -= item.cost

    def move(self, item: Item[Payload], lane: Lane) -> None:
        """Let an item that waits be served elsewhere."""
        program = self._programs[item.program]
        agent = program.agents[item.agent]
        agent.remove(item)
        program.lanes[item.lane] -= 1
        item.lane = lane
        agent.add(item)
        program.lanes[lane] += 1

    def charge(self, program: str, agent: str, tokens: float) -> None:
        """An agent has had so many tokens, which nobody knew beforehand.

        Between flows that do not compete, because nothing waits for the others, nothing counts.
        """
        flow = self._programs.get(program) or self._resting_programs.get(program)
        if flow is None:
            return
        if any(name != program for name in self._programs):
            most = self._time + self._debt_limit / flow.weight
            had = max(flow.counter, self._time) + tokens / flow.weight
            flow.counter = max(flow.counter, min(most, had))
        if any(name != agent for name in flow.agents):
            self._charge_agent(flow, program, agent, tokens)
        self._positions = None

    def position(self, item: Item[Payload]) -> int | None:
        """How many are served before it if all lanes are open; None when it does not wait."""
        if self._positions is None:
            self._positions = {each.number: at for at, each in enumerate(self.items())}
        return self._positions.get(item.number)

    def items(self) -> list[Item[Payload]]:
        """All that waits, in the order of its turns."""
        turns: list[tuple[float, int, int, Item[Payload]]] = []
        for flow in self._programs.values():
            counter = flow.counter
            for at, item in enumerate(flow.items()):
                turns.append((counter, flow.order, at, item))
                counter += item.cost / flow.weight
        return [item for *_, item in sorted(turns, key=lambda turn: turn[:3])]

    def waiting_in(self, lane: Lane) -> int:
        """How much waits in a lane."""
        return sum(flow.lanes[lane] for flow in self._programs.values())

    # --- flows come and go --------------------------------------------------------------------

    def _enter(self, item: Item[Payload]) -> ProgramFlow[Payload]:
        program = self._programs.get(item.program) or self._awake(item.program)
        agent = program.agents.get(item.agent)
        if agent is None:
            had = self._resting_agents.pop((item.program, item.agent), 0.0)
            had = max(program.time, min(had, program.time + self._debt_limit))
            agent = program.agents[item.agent] = AgentFlow(had, item.number)
        agent.add(item)
        program.lanes[item.lane] += 1
        self._items[item.number] = item
        self._positions = None
        return program

    def _awake(self, name: str) -> ProgramFlow[Payload]:
        """A program for which something is about to wait."""
        program = self._resting_programs.pop(name, None) or ProgramFlow(1.0)
        program.counter = max(program.counter, self._time)
        program.order = next(self._numbers)
        self._programs[name] = program
        return program

    def _leave(self, item: Item[Payload]) -> None:
        program = self._programs[item.program]
        agent = program.agents[item.agent]
        agent.remove(item)
        program.lanes[item.lane] -= 1
        del self._items[item.number]
        self._positions = None
        if not agent.size:
            del program.agents[item.agent]
            if agent.counter > program.time:
                _keep(self._resting_agents, (item.program, item.agent), agent.counter)
        if not program.agents:
            del self._programs[item.program]
            program.lanes.clear()
            _keep(self._resting_programs, item.program, program)

    def _charge_agent(
        self, flow: ProgramFlow[Payload], program: str, agent: str, tokens: float
    ) -> None:
        most = flow.time + self._debt_limit
        waiting = flow.agents.get(agent)
        before = (
            waiting.counter
            if waiting is not None
            else self._resting_agents.get((program, agent), flow.time)
        )
        had = max(before, min(most, max(before, flow.time) + tokens))
        if waiting is not None:
            waiting.counter = had
        else:
            _keep(self._resting_agents, (program, agent), had)


def _keep(table: OrderedDict[Key, Kept], key: Key, value: Kept) -> None:
    """Remember something, and forget what is unused for longest where there is too much."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > _REMEMBERED:
        table.popitem(last=False)
