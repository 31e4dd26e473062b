"""The ledger tells who asked for a request where the scheduler put it."""

from nnrp_sched.engine.records import Caller
from nnrp_sched_patches.ledger import Ledger
from nnrp_sched_patches.ledger_records import Part


def test_who_asked_is_told_where_the_scheduler_put_the_request_and_nothing_twice() -> None:
    ledger = Ledger()
    told: list[str] = []
    entry = ledger.open(Caller(), "nnrp", external_id="one", at=10)
    entry.moved = told.append
    ledger.register(entry, Part("one-0", "one-0", registered=11))
    assert told == []  # Only the frontend has it.
    for kind in ("queued", "queued", "scheduled"):
        ledger.event(kind, "one-0", 12, {})
    ledger.first_output("one-0", 13)
    ledger.event("preempted", "one-0", 14, {})
    ledger.engine_states({"one-0": {"state": "waiting", "position": 3}})
    ledger.event("resumed", "one-0", 15, {})
    ledger.end_part("one-0", "stop", 16)
    ledger.event("scheduled", "one-0", 17, {})
    assert told == ["waiting", "running", "preempted", "waiting", "running"]


def test_a_first_output_tells_that_the_request_runs_when_no_event_did() -> None:
    ledger = Ledger()
    told: list[str] = []
    entry = ledger.open(Caller(), "nnrp", external_id="one", at=10)
    entry.moved = told.append
    ledger.register(entry, Part("one-0", "one-0", registered=11))
    ledger.first_output("one-0", 13)
    ledger.event("queued", "one-0", 12, {})
    assert told[0] == "running"
