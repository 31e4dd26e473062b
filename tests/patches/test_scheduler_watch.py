"""The E2 hooks over a stand-in scheduler: each transition told once, with its time."""

import time
import types
from typing import Any

import pytest

from nnrp_sched_patches import scheduler_watch
from nnrp_sched_patches.hook_forms import Switch
from nnrp_sched_patches.scheduler_watch import watch_of
from tests.support.toy_scheduler import Request, Scheduler, Status, hooked


def _told(scheduler: Scheduler, since: int = 0) -> list[tuple[str, str]]:
    batch: Any = watch_of(scheduler).transitions.poll(9, since, 1000, 0)
    return [(kind, request_id) for _, kind, request_id, _, _ in batch["events"]]


def _events(scheduler: Scheduler) -> dict[tuple[str, str], tuple[int, Any]]:
    batch: Any = watch_of(scheduler).transitions.poll(9, 0, 1000, 0)
    return {(kind, name): (at, extra) for _, kind, name, at, extra in batch["events"]}


@pytest.mark.parametrize("old", [False, True])
def test_a_life_with_a_preemption_is_told_in_order_and_each_step_once(old: bool) -> None:
    scheduler = hooked()(slots=1, old=old)
    scheduler.add_request(Request("a"))
    scheduler.add_request(Request("b"))
    scheduler.schedule()
    scheduler.update_from_output()
    scheduler.preempt()
    scheduler.schedule(throttle_prefills=True)
    scheduler.schedule()
    for _ in range(3):
        scheduler.update_from_output()
        scheduler.schedule()
    scheduler.update_from_output(stop=["b"])
    scheduler.schedule()
    scheduler.update_from_output(stop=["a"])
    scheduler.schedule()
    assert _told(scheduler) == [
        *[("queued", "a"), ("queued", "b"), ("scheduled", "a"), ("preempted", "a")],
        *[("scheduled", "b"), ("finished", "b"), ("resumed", "a"), ("finished", "a")],
    ]
    assert watch_of(scheduler).seen == {}


def test_transitions_carry_what_a_ledger_needs() -> None:
    scheduler = hooked()()
    before = time.monotonic_ns()
    scheduler.add_request(Request("a"))
    scheduler.add_request(request=Request("b", priority=-3, client_index=1))
    scheduler.schedule()
    scheduler.update_from_output()
    scheduler.update_from_output(stop=["b"])
    events = _events(scheduler)
    assert events["queued", "b"][1] == {"client": 1, "priority": -3, "waiting": 2}
    queued_at, _ = events["queued", "b"]
    assert events["scheduled", "b"][1] == {"since_ns": queued_at}
    assert events["finished", "b"][1] == {"status": "FINISHED_STOPPED", "tokens": 2}
    times = [before, *(at for at, _ in events.values()), time.monotonic_ns()]
    assert times == sorted(times)


@pytest.mark.parametrize("old", [False, True])
def test_an_abort_is_told_once(old: bool) -> None:
    scheduler = hooked()(slots=1, old=old)
    for name in "ab":
        scheduler.add_request(Request(name))
    scheduler.schedule()
    scheduler.finish_requests(["a", "b", "never"], Status["FINISHED_ABORTED"])
    assert sorted(_told(scheduler, since=3)) == [("finished", "a"), ("finished", "b")]
    assert _events(scheduler)["finished", "a"][1] == {"status": "FINISHED_ABORTED", "tokens": 0}


@pytest.mark.parametrize("old", [False, True])
def test_an_abort_is_told_by_a_scheduler_that_frees_in_its_own_way(old: bool) -> None:
    def free(scheduler: Scheduler, request: Request) -> None:
        del scheduler.requests[request.request_id]

    made: Any = type("Own", (hooked(),), {"_free_request": free})
    scheduler: Any = made(old=old)
    scheduler.add_request(Request("a"))
    scheduler.finish_requests(["a"], finished_status=Status["FINISHED_ABORTED"])
    assert _told(scheduler) == [("queued", "a"), ("finished", "a")]
    assert _events(scheduler)["finished", "a"][1]["status"] == "FINISHED_ABORTED"


def test_the_next_piece_of_a_streaming_input_is_no_new_request() -> None:
    scheduler = hooked()()
    scheduler.add_request(Request("a"))
    scheduler.add_request(Request("a"))
    assert _told(scheduler) == [("queued", "a")]


def test_a_resumed_request_among_the_new_ones_is_told_as_resumed() -> None:
    scheduler = hooked()(slots=1)
    scheduler.add_request(Request("a"))
    scheduler.schedule()
    scheduler.preempt()
    # As the newer model runner has it.
    scheduler.requests["a"].status = Status["WAITING"]
    scheduler.schedule()
    assert _told(scheduler, since=2) == [("preempted", "a"), ("resumed", "a")]
    events = _events(scheduler)
    preempted_at, _ = events["preempted", "a"]
    assert events["resumed", "a"][1] == {"since_ns": preempted_at}


def test_a_preemption_that_comes_out_after_the_end_is_left_out() -> None:
    scheduler = hooked()(slots=1)
    scheduler.add_request(Request("a"))
    scheduler.schedule()
    scheduler.preempt()
    scheduler.finish_requests(["a"], Status["FINISHED_ABORTED"])
    scheduler.schedule()
    assert _told(scheduler, since=2) == [("finished", "a")]


def test_requests_from_before_the_hooks_are_followed_from_where_they_are() -> None:
    scheduler: Any = Scheduler(slots=1)
    for name in "ab":
        scheduler.add_request(Request(name))
    scheduler.schedule()
    scheduler.__class__ = hooked()
    scheduler.update_from_output(stop=["a"])
    scheduler.schedule()
    assert _told(scheduler) == [("finished", "a"), ("scheduled", "b")]
    assert watch_of(scheduler).seen["b"].queued_ns is None


def test_times_of_live_requests_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_watch, "_STRAYS", 3)
    scheduler = hooked()(slots=1)
    scheduler.add_request(Request("a"))
    scheduler.schedule()
    seen = watch_of(scheduler).seen["a"]
    assert seen.queued_ns is not None
    assert seen.scheduled_ns is not None
    assert seen.queued_ns <= seen.scheduled_ns
    for number in range(20):
        scheduler.add_request(Request(f"lost-{number}"))
        # A scheduler that lets requests go in a way that no hook sees.
        del scheduler.requests[f"lost-{number}"]
    assert len(watch_of(scheduler).seen) <= 6
    assert "a" in watch_of(scheduler).seen


def test_a_waiting_client_hears_of_an_arrival_at_once() -> None:
    scheduler = hooked()()
    poll: Any = watch_of(scheduler).transitions.poll(0, 0, 10, 30.0)
    scheduler.add_request(Request("a"))
    assert [event[1] for event in poll.result(timeout=0)["events"]] == ["queued"]


def _output(tokens: int) -> Any:
    return types.SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=types.SimpleNamespace(resumed_req_ids=set()),
        preempted_req_ids=None,
        total_num_scheduled_tokens=tokens,
    )


def test_the_step_time_is_an_average_over_steps_with_work_and_without_idle_time() -> None:
    scheduler = Scheduler()
    watch = watch_of(scheduler)
    for began, tokens in [(0, 1), (1000, 1), (2000, 0), (3800, 1)]:
        watch.stepped(scheduler, _output(tokens), began)
    assert watch.step_ns == 1000 + (2800 - 1000) / 8
    scheduler.add_request(Request("after a pause"))
    watch.queued(scheduler, scheduler.requests["after a pause"], 10**9)
    watch.stepped(scheduler, _output(1), 10**9)
    assert watch.step_ns == 1225


def test_two_schedulers_are_told_apart_and_one_that_goes_is_forgotten() -> None:
    made = hooked()
    one, other = made(), made()
    one.add_request(Request("a"))
    assert (_told(one), _told(other)) == ([("queued", "a")], [])
    count = len(scheduler_watch._watches)  # pyright: ignore[reportPrivateUsage]
    del other
    assert len(scheduler_watch._watches) == count - 1  # pyright: ignore[reportPrivateUsage]


def test_hooks_that_fail_never_touch_the_scheduler() -> None:
    switch = Switch("E2")
    scheduler: Any = hooked(switch)()
    scheduler.kv_holding_waiting = None
    scheduler.add_request(Request("a"))
    assert len(scheduler.schedule().scheduled_new_reqs) == 1
    assert switch.failures == 1
