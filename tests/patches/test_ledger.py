"""The ledger by itself: states, times, names and bounds."""

from typing import Any

import pytest

from nnrp_sched.engine.records import Caller
from nnrp_sched_patches.ledger import Ledger
from nnrp_sched_patches.ledger_records import Entry, Part

MS_NS = 1_000_000


def _state(entry: Entry) -> str:
    return entry.state


def _preempted(entry: Entry) -> float | None:
    return entry.timings.preempted


def _opened(
    ledger: Ledger, name: str = "one", *, parts: int = 1, at: float = 10.0, **members: Any
) -> Entry:
    entry = ledger.open(Caller(**members), "http", external_id=name, at=at)
    for index in range(parts):
        handle = name if parts > 1 else f"{name}-{index}"
        ledger.register(entry, Part(f"{name}-{index}", handle, registered=at + 1))
    return entry


def test_a_request_goes_through_its_states_with_a_time_for_each() -> None:
    ledger = Ledger()
    entry = ledger.open(Caller("run"), "http", external_id="one", at=10)
    assert _state(entry) == "admitting"
    ledger.register(entry, Part("one-0", "one-0", registered=11))
    assert _state(entry) == "waiting"
    ledger.event("queued", "one-0", 12, {})
    assert (_state(entry), entry.queue_delay(15)) == ("waiting", 3)
    ledger.event("scheduled", "one-0", 20, {})
    assert (_state(entry), entry.queue_delay(99)) == ("running", 8)
    ledger.first_output("one-0", 21)
    ledger.event("preempted", "one-0", 22, {})
    assert _state(entry) == "preempted"
    ledger.event("resumed", "one-0", 23, {})
    assert _state(entry) == "running"
    ledger.end_part("one-0", "stop", 30, 7)
    assert (_state(entry), entry.reason, entry.tokens, entry.finished) == (
        "finished",
        "stop",
        7,
        30,
    )
    times = entry.timings
    assert (times.submitted, times.registered, times.queued) == (10, 11, 12)
    assert (times.scheduled, times.first_token, times.preempted) == (20, 21, 22)
    assert ledger.live == []
    assert ledger.find("one") is entry


def test_several_choices_are_finished_when_the_last_one_is() -> None:
    ledger = Ledger()
    entry = _opened(ledger, parts=3)
    for index, kind in enumerate(("queued", "scheduled", "preempted")):
        ledger.event(kind, f"one-{index}", 20 + index, {})
    assert _state(entry) == "running"
    ledger.end_part("one-1", "length", 30)
    assert _state(entry) == "preempted"
    ledger.end_part("one-0", "abort", 31)
    ledger.end_part("one-2", "length", 32)
    assert (_state(entry), entry.reason, entry.finished) == ("finished", "abort+length", 32)


def test_a_request_is_not_finished_while_further_choices_are_admitted() -> None:
    ledger = Ledger()
    entry = ledger.open(Caller(), "http", external_id="one", at=1)
    entry.admissions = 1
    told: list[str] = []
    entry.when_settled.append(lambda: told.append("admitted"))
    ledger.register(entry, Part("a", "p", registered=2))
    ledger.end_part("a", "stop", 3)
    assert entry.finished is None
    assert entry in ledger.live
    ledger.register(entry, Part("b", "p", registered=4))
    ledger.end_part("b", "stop", 5)
    ledger.admitted(entry, 6)
    assert (told, ledger.live) == (["admitted"], [])
    assert entry.timings.finished == 5


def test_a_part_that_comes_after_the_end_opens_the_request_again() -> None:
    ledger = Ledger(finished_kept=1)
    entry = _opened(ledger)
    ledger.close(entry, "refused", 12)
    _opened(ledger, "two")
    for name in ("two", "three"):
        ledger.close(_opened(ledger, name), "refused", 13)
    assert ledger.find("one") is None
    ledger.register(entry, Part("one-9", "one-9", registered=20))
    assert (_state(entry), ledger.find("one")) == ("waiting", entry)


def test_the_first_word_on_an_end_counts_and_late_events_only_fill_in_times() -> None:
    ledger = Ledger()
    entry = _opened(ledger)
    ledger.end_part("one-0", "stop", 30, 5)
    ledger.event("finished", "one-0", 31, {"status": "FINISHED_ABORTED", "tokens": 6})
    ledger.event("queued", "one-0", 12, {})
    ledger.event("scheduled", "one-0", 13, {})
    assert (_state(entry), entry.reason, entry.finished, entry.tokens) == (
        "finished",
        "stop",
        30,
        6,
    )
    assert (entry.timings.queued, entry.timings.scheduled) == (12, 13)


@pytest.mark.parametrize(
    ("status", "reason"),
    [("FINISHED_STOPPED", "stop"), ("FINISHED_ABORTED", "abort"), ("FINISHED_IGNORED", "error")],
)
def test_the_engine_may_be_the_first_to_tell_of_an_end(status: str, reason: str) -> None:
    ledger = Ledger()
    entry = _opened(ledger)
    ledger.event("finished", "one-0", 31, {"status": status, "tokens": 2})
    assert (_state(entry), entry.reason, entry.tokens) == ("finished", reason, 2)


def test_taking_stock_gives_places_and_what_lost_polls_would_have_told() -> None:
    ledger = Ledger()
    first, second = _opened(ledger, "one"), _opened(ledger, "two")
    _opened(ledger, "three")
    waiting = {"state": "waiting", "priority": 3, "tokens": 0, "queued_ns": 12 * MS_NS}
    ledger.engine_states(
        {
            "one-0": waiting | {"position": 1, "scheduled_ns": None},
            "two-0": waiting | {"position": 0, "scheduled_ns": None},
            "three-0": waiting | {"state": "running", "scheduled_ns": 14 * MS_NS, "tokens": 4},
            "elsewhere": waiting,
        }
    )
    snapshot = ledger.snapshot(20, authoritative=True)
    assert [(one.id, one.position) for one in snapshot.operations] == [
        ("three", None),
        ("two", 0),
        ("one", 1),
    ]
    assert [one.state for one in snapshot.operations] == ["running", "waiting", "waiting"]
    assert (snapshot.running, snapshot.waiting) == (1, 2)
    assert (first.priority, second.timings.queued) == (3, 12)
    assert snapshot.operations[0].queue_delay_ms == 2
    assert snapshot.operations[0].tokens == 4


def test_a_preemption_that_no_poll_told_is_in_the_stock_and_the_last_one_counts() -> None:
    ledger = Ledger()
    entry = _opened(ledger)
    standing = {"state": "running", "scheduled_ns": 14 * MS_NS}
    ledger.engine_states({"one-0": standing | {"preempted_ns": None}})
    assert _preempted(entry) is None
    ledger.engine_states({"one-0": standing | {"preempted_ns": 22 * MS_NS}})
    ledger.event("preempted", "one-0", 18, {})
    assert _state(entry) == "preempted"
    assert _preempted(entry) == 22


def test_the_schedulers_own_times_replace_those_that_the_hooks_took_beside_them() -> None:
    ledger = Ledger()
    entry = _opened(ledger)
    ledger.event("queued", "one-0", 12.004, {})
    ledger.event("scheduled", "one-0", 19.998, {})
    ledger.own_times("one-0", {"queued": [12]})
    assert (entry.timings.queued, entry.timings.scheduled) == (12, 19.998)
    ledger.own_times("one-0", {"scheduled": [20, 24], "preempted": [21, 22]})
    ledger.own_times("elsewhere", {"queued": [1]})
    times = entry.timings
    assert (times.queued, times.scheduled, times.preempted) == (12, 20, 22)
    ledger.first_output("one-0", 25)
    ledger.event("preempted", "one-0", 31, {})
    # On its way since before that preemption.
    ledger.own_times("one-0", {"scheduled": [30], "preempted": [29]})
    times = entry.timings
    assert (entry.state, times.scheduled, times.preempted) == ("preempted", 20, 31)


def test_what_the_engine_does_not_have_stays_as_it_was() -> None:
    ledger = Ledger()
    entry = _opened(ledger)
    ledger.engine_states({"one-0": {"state": "unknown", "tokens": None}})
    assert _state(entry) == "waiting"


def test_an_id_that_two_requests_choose_is_told_apart() -> None:
    ledger = Ledger()
    first, second = _opened(ledger, "twin"), _opened(ledger, "twin")
    assert (first.id, second.id) == ("twin", "twin#2")
    assert (ledger.find("twin"), ledger.find("twin#2")) == (first, second)
    third = ledger.open(Caller(operation="1.1"), "nnrp", external_id="x", handle="twin", at=1)
    assert (ledger.find("1.1"), ledger.find("x")) == (third, third)
    ledger.close(first, "gone", 2)
    assert ledger.find("twin") is first


def test_an_id_that_is_free_again_is_given_again() -> None:
    ledger = Ledger()
    ledger.close(_opened(ledger, "one"), "gone", 20)
    assert ledger.find("one") is not None
    again = _opened(ledger, "one")
    assert (again.id, ledger.find("one")) == ("one", again)
    ledger.close(again, "gone", 30)
    assert ledger.find("one") is again


def test_finished_requests_are_forgotten_in_turn_and_leave_nothing() -> None:
    ledger = Ledger(finished_kept=2)
    for number in range(5):
        entry = _opened(ledger, f"{number}", parts=2)
        ledger.close(entry, "gone", 20)
    assert [ledger.find(f"{number}") is not None for number in range(5)] == [False] * 3 + [True] * 2
    assert len(vars(ledger)["_parts"]) == 4
    assert len(vars(ledger)["_names"]) == 2
    assert ledger.without_token == {}


def test_the_engines_death_finishes_everything_with_the_reason() -> None:
    ledger = Ledger()
    entries = [_opened(ledger, f"{number}") for number in range(3)]
    ledger.engine_died("killed", 50)
    assert ledger.live == []
    assert [(entry.state, entry.reason) for entry in entries] == [("finished", "killed")] * 3
    assert ledger.snapshot(51, authoritative=False).operations == ()


def test_the_frontends_count_is_asked_while_a_part_lives_and_kept_afterwards() -> None:
    ledger = Ledger()
    entry = ledger.open(Caller(), "http", external_id="one", at=1)
    count = iter((3, 5))
    ledger.register(entry, Part("one-0", "one-0", registered=2, count=lambda: next(count)))
    assert entry.tokens == 3
    ledger.end_part("one-0", "stop", 9)
    assert entry.tokens == 5
    assert entry.parts["one-0"].count is None


def test_every_start_of_the_engine_counts_for_an_estimate_whoevers_request_it_was() -> None:
    ledger = Ledger()
    entry = _opened(ledger)
    line = {"state": "waiting", "position": 1, "queued_ns": 12 * MS_NS}
    ledger.engine_states({"one-0": line})
    for number, kind in enumerate(("scheduled", "resumed", "scheduled", "scheduled")):
        ledger.event(kind, f"of-another-{number}", 20 + number * 10, {"since_ns": 12 * MS_NS})
    (told,) = ledger.snapshot(60, authoritative=True).operations
    assert told.id == entry.id
    assert told.estimate_ms == pytest.approx(1.69 * 10)
