"""What is read from a scheduler's queues, and new priorities in them."""

from typing import Any

import pytest

from nnrp_sched_patches import engine_queue
from tests.support.toy_scheduler import Request, Scheduler, Status


def _filled(policy: str, *priorities: int, old: bool = False) -> Scheduler:
    """Two that run, and the rest in line: r0, r1, …."""
    scheduler = Scheduler(policy, old=old)
    for number, priority in enumerate(priorities):
        scheduler.add_request(Request(f"r{number}", priority))
        if number == 1:
            scheduler.schedule()
    return scheduler


def _line(scheduler: Scheduler) -> list[str]:
    return [request.request_id for request in engine_queue.in_line(scheduler)]


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("WAITING", "waiting"),
        ("WAITING_FOR_FSM", "blocked"),
        ("WAITING_FOR_REMOTE_KVS", "blocked"),
        ("RUNNING", "running"),
        ("PREEMPTED", "preempted"),
        ("FINISHED_ABORTED", "finished"),
        ("HIBERNATING", "unknown"),
    ],
)
def test_every_status_of_a_request_has_a_state(name: str, state: str) -> None:
    assert engine_queue.state_of(name) == state


@pytest.mark.parametrize("old", [False, True])
def test_positions_count_from_the_next_to_be_scheduled(old: bool) -> None:
    scheduler = _filled("fcfs", 0, 0, 0, 0, 0, old=old)
    assert engine_queue.positions(scheduler, ["r4", "r2", "r0"]) == {"r2": 0, "r4": 2}


def test_under_the_priority_policy_positions_follow_priority_then_arrival() -> None:
    scheduler = _filled("priority", 0, 0, 5, 1, 5)
    assert engine_queue.positions(scheduler, ["r2", "r3", "r4"]) == {"r3": 0, "r2": 1, "r4": 2}


def test_a_preempted_request_stands_in_line() -> None:
    scheduler = _filled("priority", 0, 0, 5)
    scheduler.preempt()
    assert engine_queue.positions(scheduler, ["r1", "r2"]) == {"r1": 0, "r2": 1}


def test_a_blocked_request_has_no_position_and_does_not_count() -> None:
    scheduler = _filled("fcfs", 0, 0, 0, 0)
    scheduler.requests["r2"].status = Status["WAITING_FOR_REMOTE_KVS"]
    assert engine_queue.positions(scheduler, ["r2", "r3"]) == {"r3": 0}


def test_positions_far_back_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_queue, "POSITION_LIMIT", 2)
    scheduler = _filled("fcfs", 0, 0, 0, 0, 0)
    assert engine_queue.positions(scheduler, ["r3", "r4"]) == {"r3": 1}


def test_requests_that_hold_memory_or_were_passed_over_come_first() -> None:
    new = _filled("fcfs", 0, 0, 0)
    new.kv_holding_waiting.add_request(Request("held"))
    assert _line(new) == ["held", "r2"]
    old = _filled("fcfs", 0, 0, 0, old=True)
    old.skipped_waiting.add_request(Request("skipped"))
    assert _line(old) == ["skipped", "r2"]


def test_up_to_0_30_the_priority_policy_merges_both_containers() -> None:
    old = _filled("priority", 0, 0, 1, 7, old=True)
    old.skipped_waiting.add_request(Request("skipped", 4))
    assert _line(old) == ["r2", "skipped", "r3"]


def test_counts_tell_those_set_aside_apart() -> None:
    new = _filled("fcfs", 0, 0, 0, 0, 0)
    new.deferred_waiting.add(new.requests["r2"])
    assert engine_queue.counts(new) == {"running": 2, "waiting": 2, "blocked": 1}
    old = _filled("fcfs", 0, 0, 0, old=True)
    old.skipped_waiting.add_request(Request("skipped"))
    assert engine_queue.counts(old) == {"running": 2, "waiting": 1, "blocked": 1}


def test_the_listing_begins_with_what_runs_and_ends_at_the_limit() -> None:
    scheduler = _filled("fcfs", 0, 0, 0, 0)
    listed = engine_queue.listed(scheduler, 3)
    assert [request.request_id for request in listed] == ["r0", "r1", "r2"]


def test_what_finish_requests_returns_is_read_in_both_shapes() -> None:
    assert engine_queue.ended_id(("r1", 0)) == "r1"
    assert engine_queue.ended_id(Request("r2")) == "r2"


@pytest.mark.parametrize("old", [False, True])
def test_new_priorities_put_waiting_requests_in_new_places(old: bool) -> None:
    scheduler = _filled("priority", 0, 0, 18, 19, 20, 21, old=old)
    outcomes = engine_queue.set_priorities(
        scheduler, {"r5": 1, "r2": 99, "r0": 3, "nobody": 0, "r4": 20}
    )
    assert outcomes == {
        **{"r5": "applied", "r2": "applied", "r4": "applied"},
        **{"r0": "not_waiting", "nobody": "unknown"},
    }
    assert _line(scheduler) == ["r5", "r3", "r4", "r2"]
    assert scheduler.requests["r0"].priority == 0


def test_a_request_goes_back_to_the_container_it_was_in() -> None:
    scheduler = _filled("priority", 0, 0, 5, old=True)
    skipped = Request("skipped", 9)
    scheduler.requests["skipped"] = skipped
    scheduler.skipped_waiting.add_request(skipped)
    assert engine_queue.set_priorities(scheduler, {"skipped": 1}) == {"skipped": "applied"}
    assert [request.request_id for request in scheduler.skipped_waiting] == ["skipped"]
    assert _line(scheduler) == ["skipped", "r2"]


def test_under_fcfs_priorities_are_refused_and_nothing_is_touched() -> None:
    scheduler = _filled("fcfs", 0, 0, 0, 0)
    asked: dict[str, Any] = {"r3": 1, "r0": 1, "nobody": 1}
    assert engine_queue.set_priorities(scheduler, asked) == {
        **{"r3": "policy_fcfs", "r0": "policy_fcfs", "nobody": "unknown"}
    }
    assert _line(scheduler) == ["r2", "r3"]
    assert scheduler.requests["r3"].priority == 0
