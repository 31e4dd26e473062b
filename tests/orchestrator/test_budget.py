"""Budgets: inherited, shared by siblings, never exceeded."""

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nnrp_sched_orchestrator.budget import Account, Budget
from nnrp_sched_orchestrator.errors import BudgetExceeded
from nnrp_sched_orchestrator.grants import CALL_TOKENS, MARGIN, Grant, Settlements, Terms, grant
from nnrp_sched_orchestrator.records import Spent

SECONDS = 20


@pytest.mark.parametrize("name", ["tokens", "model_calls", "depth", "fan_out"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1.5, "5", True, -1])
def test_what_is_counted_is_limited_by_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"budget {name}=.*whole number"):
        Budget(**{name: value})


@pytest.mark.parametrize("name", ["tokens", "model_calls", "depth", "fan_out", "seconds"])
def test_a_limit_is_not_negative(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Budget(**{name: -1})


def test_without_limits_everything_is_allowed_and_counted() -> None:
    root = Account("p", clock=lambda: 0.0)
    child = Account("p/a", parent=root, clock=lambda: 0.0)
    assert child.free is None
    assert not child.limited
    assert child.reserve(10_000) == 10_000
    child.settle(10_000, 123)
    child.count_call()
    child.check_child()
    child.check_fan_out(1000)
    assert root.spent == Spent(123, 1, 0.0)


def test_every_limit_above_counts_and_siblings_share_it() -> None:
    root = Account("p", Budget(tokens=100))
    one = Account("p/one", Budget(tokens=80), root)
    other = Account("p/other", parent=root)
    assert one.reserve(1000) == 80
    assert other.reserve(1000) == 20
    assert other.reserve(1) == 0
    one.settle(80, 10)
    assert (root.free, one.free, other.free) == (70, 70, 70)
    assert (root.left, one.left) == (90, 70)


def test_a_spent_budget_says_whose_it_was_and_where_it_went() -> None:
    root = Account("p", Budget(tokens=100), clock=lambda: 0.0)
    one = Account("p/one", parent=root, clock=lambda: 0.0)
    below = Account("p/one/below", parent=one, clock=lambda: 0.0)
    one.settle(one.reserve(60), 60)
    below.settle(below.reserve(40), 40)
    with pytest.raises(BudgetExceeded, match="tokens budget of 'p'") as caught:
        below.reserve(1)
    error = caught.value
    assert (error.limit, error.owner, error.allowed) == ("tokens", "p", 100)
    assert {path: spent.tokens for path, spent in error.spent.items()} == {
        "p": 100,
        "p/one": 100,
        "p/one/below": 40,
    }


def test_tokens_that_are_set_aside_may_come_back_so_one_waits_for_them() -> None:
    root = Account("p", Budget(tokens=100))
    held = root.reserve(100)
    assert root.reserve(1) == 0
    root.settle(held, 99)
    assert root.reserve(5) == 1
    root.settle(1, 1)
    with pytest.raises(BudgetExceeded):
        root.reserve(1)


def test_calls_are_counted_here_and_above_and_a_refused_one_nowhere() -> None:
    root = Account("p", Budget(model_calls=2))
    child = Account("p/a", Budget(model_calls=1), root)
    child.count_call()
    with pytest.raises(BudgetExceeded, match="model_calls budget of 'p/a'"):
        child.count_call()
    root.count_call()
    with pytest.raises(BudgetExceeded, match="model_calls budget of 'p'"):
        root.count_call()
    assert (root.model_calls, child.model_calls) == (2, 1)


def test_t18_depth_is_counted_from_whose_limit_it_is() -> None:
    root = Account("p", Budget(depth=2))
    child = Account("p/a", parent=root)
    grandchild = Account("p/a/b", parent=child)
    root.check_child()
    child.check_child()
    with pytest.raises(BudgetExceeded, match="depth budget of 'p'"):
        grandchild.check_child()
    with pytest.raises(BudgetExceeded, match="depth"):
        Account("q", Budget(depth=0)).check_child()


def test_t18_the_smallest_fan_out_above_counts() -> None:
    root = Account("p", Budget(fan_out=3))
    child = Account("p/a", Budget(fan_out=5), root)
    child.check_fan_out(2)
    with pytest.raises(BudgetExceeded, match="fan_out budget of 'p'"):
        child.check_fan_out(3)


def test_agents_of_one_name_after_another_are_told_together() -> None:
    root = Account("p", clock=lambda: 0.0)
    for _ in range(3):
        child = Account("p/a", parent=root, clock=lambda: 0.0)
        child.settle(child.reserve(5), 5)
        child.close()
    assert root.spent_below()["p/a"].tokens == 15


def test_of_very_many_ended_agents_only_the_sum_is_remembered() -> None:
    root = Account("p")
    for number in range(1000):
        child = Account(f"p/{number}", parent=root)
        child.settle(child.reserve(1), 1)
        child.close()
    assert root.spent.tokens == 1000
    assert len(root.spent_below()) <= 300


def test_the_time_of_an_agent_ends_with_it() -> None:
    now = [5.0]
    account = Account("p", clock=lambda: now[0])
    now[0] = 8.0
    account.close()
    now[0] = 100.0
    assert account.spent.seconds == 3.0


class Tree(RuleBasedStateMachine):
    """Random agents that reserve, extend and settle in any order; no limit is ever passed."""

    @initialize(limit=st.integers(0, 5000))
    def open(self, limit: int) -> None:
        self.accounts = [Account("p", Budget(tokens=limit))]
        self.grants: list[Grant] = []

    @rule(data=st.data(), limit=st.none() | st.integers(0, 3000))
    def add_agent(self, data: st.DataObject, limit: int | None) -> None:
        parent = data.draw(st.sampled_from(self.accounts))
        path = f"{parent.path}/{len(self.accounts)}"
        self.accounts.append(Account(path, Budget(tokens=limit), parent))

    @rule(data=st.data(), asked=st.integers(1, 4000), least=st.integers(1, 4))
    def reserve(self, data: st.DataObject, asked: int, least: int) -> None:
        account = data.draw(st.sampled_from(self.accounts))
        try:
            tokens = account.reserve(asked, least)
        except BudgetExceeded:
            assert account.left is not None
            assert account.left < least
            return
        if tokens:
            assert tokens >= least
            self.grants.append(Grant(account, asked, tokens))

    @rule(data=st.data(), used=st.integers(0, 6000))
    def extend(self, data: st.DataObject, used: int) -> None:
        if self.grants:
            share = data.draw(st.sampled_from(self.grants))
            before = share.tokens
            assert share.extend(used) == (share.tokens > before)

    @rule(data=st.data(), part=st.floats(0, 1))
    def settle(self, data: st.DataObject, part: float) -> None:
        if self.grants:
            share = data.draw(st.sampled_from(self.grants))
            self.grants.remove(share)
            terms = share.terms
            bound = terms.cap if terms.token_budget is None else terms.token_budget
            assert bound is not None
            assert bound <= share.tokens
            share.settle(round(part * share.tokens))
            share.settle(10**9)  # Only the first one counts.

    @invariant()
    def no_limit_is_passed(self) -> None:
        for account in self.accounts:
            assert account.reserved >= 0
            limit = account.budget.tokens
            if limit is not None:
                assert account.tokens + account.reserved <= limit

    @invariant()
    def what_is_set_aside_is_what_the_calls_have(self) -> None:
        assert self.accounts[0].reserved == sum(share.tokens for share in self.grants)

    def teardown(self) -> None:
        for share in self.grants:
            share.settle(0)
        assert all(account.reserved == 0 for account in self.accounts)


TestTree = Tree.TestCase
TestTree.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


# --- shares ---------------------------------------------------------------------------------------


def share(budget: int, asked: int | None, tokens: int) -> Grant:
    """A share of so many tokens in a budget."""
    account = Account("p", Budget(tokens=budget))
    assert account.reserve(tokens) == tokens
    return Grant(account, asked, tokens)


def test_a_share_without_a_budget_says_nothing() -> None:
    account = Account("p")
    free = Grant(account, 50, account.reserve(50))
    assert free.terms == Terms()
    assert not free.cut(50, "length")
    assert not free.extend(50)


def test_a_share_of_all_that_was_asked_for_is_exact() -> None:
    assert share(1000, 500, 500).terms == Terms(500)


def test_a_share_of_all_that_is_left_is_exact() -> None:
    assert share(300, None, 300).terms == Terms(300)


def test_a_small_share_is_exact_and_does_not_grow() -> None:
    small = share(1000, 500, 20)
    assert small.terms == Terms(20)
    assert not small.extend(20)


def test_a_share_that_may_grow_is_ended_early_enough() -> None:
    growing = share(5000, None, CALL_TOKENS)
    assert growing.terms == Terms(5000, CALL_TOKENS - MARGIN)
    assert not growing.extend(CALL_TOKENS // 2 - 1)
    assert growing.extend(CALL_TOKENS // 2)
    assert growing.terms == Terms(5000, 2 * CALL_TOKENS - MARGIN)


@pytest.mark.parametrize(
    ("budget", "asked", "longest", "terms"),
    [
        (300, None, 600, Terms(300)),
        (300, None, 599, Terms(None, 300 - MARGIN)),
        (5000, None, 2048, Terms(None, CALL_TOKENS - MARGIN)),
        (300, 300, 301, Terms(300)),
        (20, None, 30, Terms(20)),
    ],
    ids=["twice as long", "shorter", "may grow", "asked for by the call itself", "small"],
)
def test_a_share_that_a_context_may_have_no_room_for_is_kept_to_by_the_server(
    budget: int, asked: int | None, longest: int, terms: Terms
) -> None:
    suited = share(budget, asked, min(budget, CALL_TOKENS))
    suited.suit(longest)
    assert suited.terms == terms
    bound = suited.terms.token_budget or budget
    assert suited.cut(bound, "length") is (asked is None)
    assert not suited.cut(bound - 1, "length")


def test_a_share_is_exact_again_on_a_server_whose_model_has_room() -> None:
    moved = share(300, None, 300)
    moved.suit(400)
    moved.suit(4000)
    assert moved.terms == Terms(300)


def test_a_share_grows_up_to_what_its_call_may_make() -> None:
    growing = share(5000, 1100, CALL_TOKENS)
    assert growing.extend(CALL_TOKENS)
    assert growing.terms == Terms(1100)
    assert not growing.extend(1100)


@pytest.mark.parametrize(
    ("used", "reason", "cut"), [(300, "length", True), (300, "stop", False), (299, "length", False)]
)
def test_an_answer_was_cut_when_it_reached_its_bound_and_no_sooner(
    used: int, reason: str, cut: bool
) -> None:
    assert share(300, None, 300).cut(used, reason) is cut


def test_an_answer_that_had_all_it_asked_for_was_not_cut() -> None:
    assert not share(1000, 500, 500).cut(500, "length")


@given(st.integers(1, 10_000), st.none() | st.integers(1, 10_000), st.integers(0, 10_000))
def test_what_a_share_is_told_never_passes_what_is_set_aside(
    budget: int, asked: int | None, used: int
) -> None:
    account = Account("p", Budget(tokens=budget))
    it = Grant(account, asked, account.reserve(min(CALL_TOKENS, asked or CALL_TOKENS)))
    for _ in range(5):
        terms = it.terms
        assert terms.cap is not None
        assert min(terms.cap, terms.token_budget or terms.cap) <= it.tokens <= budget
        it.extend(used)


@pytest.mark.anyio
async def test_a_call_waits_for_tokens_until_another_is_settled() -> None:
    account, settlements = Account("p", Budget(tokens=100)), Settlements()
    first = await grant(account, settlements, None)
    assert first.tokens == 100
    got: list[int] = []

    async def second() -> None:
        got.append((await grant(account, settlements, 10)).tokens)

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second)
            await anyio.wait_all_tasks_blocked()
            assert got == []
            first.settle(95)
            settlements.tell()
    assert got == [5]


@pytest.mark.anyio
async def test_a_call_that_waits_for_tokens_in_vain_is_told() -> None:
    account, settlements = Account("p", Budget(tokens=100)), Settlements()
    first = await grant(account, settlements, None)
    refused: list[BudgetExceeded] = []

    async def second() -> None:
        try:
            await grant(account, settlements, 10)
        except BudgetExceeded as error:
            refused.append(error)

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second)
            await anyio.wait_all_tasks_blocked()
            first.settle(100)
            settlements.tell()
    assert [error.limit for error in refused] == ["tokens"]


@pytest.mark.anyio
async def test_a_call_that_needs_several_tokens_gets_them_or_none() -> None:
    account = Account("p", Budget(tokens=3))
    with pytest.raises(BudgetExceeded):
        await grant(account, Settlements(), 8, choices=4)
    assert (await grant(account, Settlements(), 8, choices=2)).tokens == 2
    assert account.free == 1
