"""The ring of transitions and its long-poll."""

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from nnrp_sched_patches.transitions import Transitions


def _recorded(count: int, **options: Any) -> Transitions:
    transitions = Transitions(**options)
    for number in range(count):
        transitions.record("queued", f"r{number}", 1000 + number)
    return transitions


def _at_once(transitions: Transitions, **ask: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"client": 0, "since": 0, "limit": 100, "wait_s": 0.0, **ask}
    answer = transitions.poll(**asked)
    assert isinstance(answer, dict)
    return answer


def _later(transitions: Transitions, **ask: Any) -> Future[dict[str, Any]]:
    asked: dict[str, Any] = {"client": 0, "since": 0, "limit": 100, "wait_s": 30.0, **ask}
    answer = transitions.poll(**asked)
    assert isinstance(answer, Future)
    return answer


def test_transitions_come_in_order_and_each_once() -> None:
    transitions = _recorded(3)
    first = _at_once(transitions, limit=2)
    second = _at_once(transitions, since=first["seq"])
    assert [event[0] for event in first["events"]] == [1, 2]
    assert second == {"seq": 3, "events": [(3, "queued", "r2", 1002, None)], "dropped": 0}
    assert _at_once(transitions, since=3) == {"seq": 3, "events": [], "dropped": 0}


@pytest.mark.parametrize("since", [0, 1, 5, 6])
def test_a_slow_client_is_told_how_many_it_missed(since: int) -> None:
    answer = _at_once(_recorded(10, capacity=4), since=since)
    numbers = [event[0] for event in answer["events"]]
    assert numbers == [7, 8, 9, 10]
    assert answer["dropped"] == 6 - since


def test_a_client_that_is_ahead_of_the_engine_starts_again_from_its_number() -> None:
    assert _at_once(_recorded(2), since=99, wait_s=30.0) == {"seq": 2, "events": [], "dropped": 0}


def test_a_waiting_client_is_answered_by_the_next_delivery() -> None:
    transitions = _recorded(1)
    polls = [_later(transitions, client=client, since=1) for client in (0, 1)]
    transitions.record("scheduled", "r0", 2000)
    transitions.record("finished", "r0", 3000, {"status": "FINISHED_STOPPED"})
    assert not any(poll.done() for poll in polls)
    transitions.deliver()
    for poll in polls:
        answer = poll.result(timeout=0)
        assert [event[1] for event in answer["events"]] == ["scheduled", "finished"]
        assert answer["seq"] == 3
    assert transitions.waiting == 0


def test_a_new_poll_of_a_client_answers_its_old_one_empty() -> None:
    transitions = _recorded(1)
    lost = _later(transitions, since=1)
    kept = _later(transitions, since=1)
    other = _later(transitions, since=1, client=1)
    assert lost.result(timeout=0) == {"seq": 1, "events": [], "dropped": 0}
    assert (kept.done(), other.done(), transitions.waiting) == (False, False, 2)
    _at_once(transitions, since=0)
    assert kept.result(timeout=0)["events"] == []


def test_a_poll_ends_empty_when_its_time_is_over() -> None:
    transitions = _recorded(2)
    slow = _later(transitions, client=1, since=2)
    quick = _later(transitions, client=2, since=2, wait_s=0.01)
    assert quick.result(timeout=20) == {"seq": 2, "events": [], "dropped": 0}
    assert (slow.done(), transitions.waiting) == (False, 1)
    transitions.record("queued", "late", 1)
    transitions.deliver()
    assert slow.result(timeout=0)["seq"] == 3


def _timers(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before]


def test_the_timer_thread_starts_with_the_first_waiting_poll_and_leaves_when_idle() -> None:
    before = set(threading.enumerate())
    transitions = _recorded(1, linger_s=0.01)
    _at_once(transitions)
    assert _timers(before) == []
    for _ in range(2):
        poll = _later(transitions, since=1, wait_s=0.01)
        (timer,) = _timers(before)
        assert timer.daemon
        assert poll.result(timeout=20)["events"] == []
        timer.join(timeout=20)
        assert not timer.is_alive()


def test_answers_by_timer_and_by_the_engine_lose_and_double_nothing() -> None:
    transitions = Transitions(linger_s=0.01)
    got: list[int] = []
    asked = 0
    # Every poll is due almost at once, while the engine's thread records and delivers.
    for number in range(2000):
        answer = transitions.poll(0, got[-1] if got else 0, 100, 0.00001)
        if number % 3:
            transitions.record("queued", f"r{number}", number)
            transitions.deliver()
        batch = answer if isinstance(answer, dict) else answer.result(timeout=20)
        asked += isinstance(answer, Future)
        got += [event[0] for event in batch["events"]]
    got += [event[0] for event in _at_once(transitions, since=got[-1])["events"]]
    assert got == list(range(1, transitions.seq + 1))
    assert asked > 500
