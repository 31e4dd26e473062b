"""The fair queue: shares, order told in advance, bounds, and nobody left waiting."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nnrp_sched_orchestrator.attained import Attained, jain_index
from nnrp_sched_orchestrator.errors import QueueFull
from nnrp_sched_orchestrator.fair_queue import DEBT_LIMIT, FairQueue
from nnrp_sched_orchestrator.flows import Item

ANY = (None,)
LANES = (None, "a", "b")


def served(queue: FairQueue[str], count: int) -> list[str]:
    """The next payloads; each of them waits again, so that the same flows stay."""
    found: list[str] = []
    for _ in range(count):
        item = queue.take(ANY)
        assert item is not None
        found.append(item.payload)
        queue.add(item.program, item.agent, item.payload, cost=item.cost)
    return found


def test_agents_of_a_program_take_turns_whoever_came_with_how_much() -> None:
    queue = FairQueue[str](100)
    for number in range(10):
        queue.add("p", "greedy", f"greedy-{number}")
    queue.add("p", "modest", "modest")
    order = [item.payload for item in queue.items()]
    assert order[:3] == ["greedy-0", "modest", "greedy-1"]


def test_a_program_of_many_agents_gets_no_more_than_one_of_a_single_agent() -> None:
    queue = FairQueue[str](1000)
    for number in range(50):
        queue.add("wide", f"agent-{number}", "wide")
        queue.add("narrow", "agent", "narrow")
    taken = [queue.take(ANY) for _ in range(40)]
    assert Counter(item.payload for item in taken if item) == {"wide": 20, "narrow": 20}


@pytest.mark.parametrize("weight", [0.25, 0.5, 2, 3, 7.5])
def test_t35_programs_get_shares_by_their_weights(weight: float) -> None:
    queue = FairQueue[str](1000)
    for _ in range(400):
        queue.add("heavy", "a", "heavy", weight=weight)
        queue.add("light", "a", "light")
    found = Counter(item.payload for _ in range(300) if (item := queue.take(ANY)))
    assert found["heavy"] == pytest.approx(300 * weight / (1 + weight), abs=1.5)


def test_a_weight_gives_no_bursts() -> None:
    queue = FairQueue[str](100)
    for _ in range(12):
        queue.add("heavy", "a", "H", weight=3)
        queue.add("light", "a", "L")
    order = "".join(item.payload for item in queue.items())
    assert "HHHHH" not in order[:12]


def test_t38_tokens_that_a_call_turns_out_to_cost_are_held_against_who_had_them() -> None:
    queue = FairQueue[str](100)
    for agent in ("thrifty", "lavish"):
        queue.add("p", agent, agent)
    had = Counter[str]()
    for _ in range(400):
        item = queue.take(ANY)
        assert item is not None
        tokens = 90.0 if item.agent == "lavish" else 9.0
        had[item.agent] += 1 + int(tokens)
        queue.add("p", item.agent, item.payload)
        queue.charge("p", item.agent, tokens)
    assert jain_index(had.values()) > 0.99


def test_what_is_had_while_nobody_else_waits_is_not_held_against_anyone() -> None:
    queue = FairQueue[str](100)
    queue.add("p", "alone", "alone")
    queue.take(ANY)
    queue.charge("p", "alone", 10_000)
    for _ in range(3):
        queue.add("p", "alone", "alone")
        queue.add("p", "new", "new")
    assert [item.payload for item in queue.items()][:4] == ["alone", "new", "alone", "new"]


def test_a_flow_that_was_away_gains_nothing_by_it() -> None:
    queue = FairQueue[str](1000)
    queue.add("p", "steady", "steady")
    served(queue, 500)
    for _ in range(10):
        queue.add("p", "back", "back")
    found = Counter(served(queue, 10))
    assert found["back"] in (5, 6)


def test_t37_a_flow_with_the_largest_debt_is_served_though_newcomers_never_end() -> None:
    queue = FairQueue[str](1000, debt_limit=50)
    queue.add("p", "debtor", "debtor")
    queue.add("p", "other", "other")
    queue.charge("p", "debtor", 1e9)
    for number in range(1000):
        queue.add("p", f"newcomer-{number}", "newcomer")
        item = queue.take(ANY)
        assert item is not None
        if item.payload == "debtor":
            break
    else:
        pytest.fail("it was never served")
    assert number < 500


def test_t32_what_cannot_be_served_now_holds_nobody_up() -> None:
    queue = FairQueue[str](100)
    queue.add("p", "a", "first", lane="full")
    queue.add("p", "a", "second", lane="free")
    queue.add("p", "b", "third")
    taken = [queue.take((None, "free")) for _ in range(3)]
    assert [item.payload if item else None for item in taken] == ["second", "third", None]
    last = queue.take((None, "full"))
    assert last is not None
    assert last.payload == "first"


def test_a_full_queue_refuses_and_names_its_limit() -> None:
    queue = FairQueue[str](2)
    for _ in range(2):
        queue.add("p", "a", "x")
    with pytest.raises(QueueFull, match="2 calls wait already") as raised:
        queue.add("q", "b", "y")
    assert raised.value.limit == 2
    assert len(queue) == 2


@pytest.mark.parametrize(
    ("member", "value"),
    [("weight", 0), ("weight", -1), ("weight", float("inf")), ("cost", 0), ("cost", float("nan"))],
)
def test_a_weight_or_cost_that_would_break_the_order_is_refused(member: str, value: float) -> None:
    with pytest.raises(ValueError, match=member):
        FairQueue[str](2).add("p", "a", "x", **dict[str, Any]({member: value}))


def test_t34_what_is_put_back_is_served_as_if_it_had_not_been_taken() -> None:
    queue = FairQueue[str](100)
    for number in range(4):
        queue.add("p", "a", f"a{number}")
        queue.add("q", "b", f"b{number}")
    before = [item.payload for item in queue.items()]
    item = queue.take(ANY)
    assert item is not None
    queue.put_back(item)
    assert [item.payload for item in queue.items()] == before


def test_what_is_put_back_after_its_flow_was_gone_comes_first_among_its_own() -> None:
    queue = FairQueue[str](100)
    queue.add("p", "a", "first")
    item = queue.take(ANY)
    assert item is not None
    queue.add("p", "a", "second")
    queue.put_back(item)
    assert [item.payload for item in queue.items()] == ["first", "second"]


def test_an_item_that_moves_to_another_lane_keeps_its_turn() -> None:
    queue = FairQueue[str](100)
    first = queue.add("p", "a", "first", lane="a")
    queue.add("p", "a", "second", lane="b")
    queue.move(first, "b")
    assert (queue.waiting_in("a"), queue.waiting_in("b")) == (0, 2)
    item = queue.take(("b",))
    assert item is first


def test_memory_of_flows_is_bounded() -> None:
    queue = FairQueue[str](100)
    queue.add("rival", "r", "rival")
    queue.add("p", "rival", "rival")
    for number in range(6000):
        queue.add("p", f"agent-{number}", "x", lane="x")
        item = queue.take(("x",))
        assert item is not None
        queue.charge("p", item.agent, 10_000)
        queue.add(f"program-{number}", "a", "y", lane="y")
        queue.take(("y",))
    assert queue.remembered <= 2 * 4096


# --- properties -----------------------------------------------------------------------------------

NAMES = st.sampled_from("pqrs")
AGENTS = st.sampled_from("abcd")
COSTS = st.sampled_from([1.0, 2.0, 10.0, 333.3])
ARRIVALS = st.lists(st.tuples(NAMES, AGENTS, st.sampled_from([0.5, 1, 3]), COSTS), max_size=60)


@given(ARRIVALS)
def test_positions_tell_the_order_in_which_all_are_served(
    arrivals: list[tuple[str, str, float, float]],
) -> None:
    queue = FairQueue[int](100)
    items = [
        queue.add(program, agent, number, weight=weight, cost=cost)
        for number, (program, agent, weight, cost) in enumerate(arrivals)
    ]
    told = sorted(items, key=lambda item: queue.position(item) or 0)
    taken: list[Item[int]] = []
    while (item := queue.take(ANY)) is not None:
        taken.append(item)
    assert [item.number for item in taken] == [item.number for item in told]
    assert all(queue.position(item) is None for item in items)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 128), st.lists(st.integers(100, 400), min_size=1, max_size=50))
def test_equals_that_always_wait_get_the_same_whatever_their_calls_cost(
    agents: int, costs: list[int]
) -> None:
    queue, attained = FairQueue[str](1000), Attained()
    for number in range(agents):
        queue.add("p", str(number), "x")
    total, turn = 0, 0
    while total < agents * 10 * max(costs):
        item = queue.take(ANY)
        assert item is not None
        tokens = costs[turn * 7919 % len(costs)]
        queue.add("p", item.agent, "x")
        queue.charge("p", item.agent, tokens)
        attained.add("p", item.agent, 1 + tokens)
        total, turn = total + tokens, turn + 1
    assert attained.jain() >= 0.95


class Waits(RuleBasedStateMachine):
    """Whatever comes and goes: nothing is lost, and everything has its position."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue[str](40, debt_limit=20)
        self.items: dict[int, Item[str]] = {}
        self.taken: list[Item[str]] = []

    @rule(
        program=NAMES, agent=AGENTS, lane=st.sampled_from(LANES), cost=st.sampled_from([1.0, 5.0])
    )
    def add(self, program: str, agent: str, lane: str | None, cost: float) -> None:
        try:
            item = self.queue.add(program, agent, "", lane=lane, cost=cost)
        except QueueFull:
            assert len(self.items) == 40
        else:
            self.items[item.number] = item

    @rule(lanes=st.sets(st.sampled_from(LANES), min_size=1))
    def take(self, lanes: set[str | None]) -> None:
        item = self.queue.take(lanes)
        able = [each for each in self.items.values() if each.lane in lanes]
        assert (item is None) == (not able)
        if item is not None:
            assert item in able
            del self.items[item.number]
            self.taken.append(item)

    @rule(data=st.data())
    @precondition(lambda self: self.items)
    def remove(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.items)))
        item = self.items.pop(number)
        assert self.queue.remove(item)
        assert not self.queue.remove(item)

    @rule(data=st.data(), lane=st.sampled_from(LANES))
    @precondition(lambda self: self.items)
    def move(self, data: st.DataObject, lane: str | None) -> None:
        item = self.items[data.draw(st.sampled_from(sorted(self.items)))]
        self.queue.move(item, lane)

    @rule()
    @precondition(lambda self: self.taken and len(self.items) < 40)
    def put_back(self) -> None:
        item = self.taken.pop()
        self.queue.put_back(item)
        self.items[item.number] = item

    @rule(program=NAMES, agent=AGENTS, tokens=st.floats(0, 1000))
    def charge(self, program: str, agent: str, tokens: float) -> None:
        self.queue.charge(program, agent, tokens)

    @invariant()
    def everything_waits_in_some_order(self) -> None:
        order = self.queue.items()
        assert {item.number for item in order} == set(self.items)
        assert len(order) == len(self.queue) == len(self.items)
        positions = [self.queue.position(item) for item in order]
        assert positions == list(range(len(order)))
        for lane in LANES:
            waiting = sum(item.lane == lane for item in self.items.values())
            assert self.queue.waiting_in(lane) == waiting


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(NAMES, AGENTS, st.sampled_from([0.5, 1, 3]), COSTS), min_size=1, max_size=20
    ),
    st.lists(st.tuples(NAMES, AGENTS, st.floats(0, 1e6)), max_size=10),
    st.booleans(),
)
def test_t37_whoever_waits_is_served_whatever_he_had_and_whoever_keeps_coming(
    arrivals: list[tuple[str, str, float, float]],
    charges: list[tuple[str, str, float]],
    strangers: bool,
) -> None:
    queue = FairQueue[bool](100, debt_limit=20)
    for program, agent, weight, cost in arrivals:
        queue.add(program, agent, True, weight=weight, cost=cost)
    for program, agent, tokens in charges:
        queue.charge(program, agent, tokens)
    left = len(arrivals)
    for number in range(50_000):
        program = f"new-{number}" if strangers else arrivals[0][0]
        queue.add(program, f"new-{number}", False)
        item = queue.take(ANY)
        assert item is not None
        left -= item.payload
        if not left:
            break
    assert left == 0


TestWaits = Waits.TestCase


def test_the_usual_debt_limit_is_many_calls() -> None:
    assert DEBT_LIMIT >= 16 * 1024


# --- the index ------------------------------------------------------------------------------------


def test_jains_index_is_one_for_equals_and_a_part_where_one_has_all() -> None:
    assert jain_index([3, 3, 3]) == 1
    assert jain_index([1, 0, 0, 0]) == 0.25
    assert jain_index([]) == 1


def test_the_index_counts_what_each_was_entitled_to() -> None:
    attained = Attained()
    for number in range(4):
        attained.add("wide", str(number), 10, weight=2)
    attained.add("narrow", "a", 20, weight=1)
    assert attained.jain() == pytest.approx(1)
    attained.add("narrow", "a", 200)
    assert attained.jain() < 0.7
    assert attained.jain([("wide", "1"), ("wide", "2")]) == pytest.approx(1)


def test_the_index_remembers_a_bounded_number_of_agents() -> None:
    attained = Attained()
    for number in range(5000):
        attained.add("p", str(number), 1)
    assert attained.of("p", "4999") == 1
    assert attained.of("p", "0") == 0
