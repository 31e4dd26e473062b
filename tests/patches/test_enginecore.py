"""The methods that E1 adds to the engine, over a stand-in."""

import enum
import sys
import types
from typing import Any

import msgspec
import pytest

from nnrp_sched_patches.scheduler_watch import watch_of
from tests.support.toy_scheduler import Engine, Request, Status, hooked


class _Output(msgspec.Struct):
    request_id: str
    new_token_ids: list[int]
    finish_reason: Any = None
    stop_reason: str | None = None


class _Outputs(msgspec.Struct):
    outputs: list[_Output]
    finished_requests: set[str] | None = None


class _FinishReason(enum.IntEnum):
    ABORT = 2


@pytest.fixture(autouse=True)
def messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for vLLM's message types."""
    module: Any = types.ModuleType("vllm.v1.engine")
    module.EngineCoreOutput, module.EngineCoreOutputs = _Output, _Outputs
    module.FinishReason = _FinishReason
    monkeypatch.setitem(sys.modules, "vllm.v1.engine", module)


def _engine(*requests: Request, policy: str = "fcfs", slots: int = 1, old: bool = False) -> Engine:
    """With the first `slots` requests running."""
    scheduler = hooked()(policy, slots=slots, old=old)
    for request in requests:
        scheduler.add_request(request)
    scheduler.schedule()
    scheduler.update_from_output()
    return Engine(scheduler)


@pytest.mark.parametrize("old", [False, True])
def test_an_abort_tells_what_each_request_was_doing_and_takes_it_out(old: bool) -> None:
    engine = _engine(*(Request(name) for name in "abc"), slots=1, old=old)
    reply = engine.call("abort", ids=["a", "b", "never"], client=0)
    assert reply["requests"] == {
        "a": {
            **{"state": "running", "engine_status": "RUNNING"},
            **{"tokens": 1, "client": 0, "accepted": True},
        },
        "b": {
            **{"state": "waiting", "engine_status": "WAITING"},
            **{"tokens": 0, "client": 0, "accepted": True},
        },
        "never": {
            **{"state": "unknown", "engine_status": None},
            **{"tokens": None, "client": None, "accepted": False},
        },
    }
    assert reply["mono_ns"] > 0
    assert set(engine.scheduler.requests) == {"c"}
    new = engine.scheduler.schedule().scheduled_new_reqs
    assert [one.req_id for one in new] == ["c"]
    # The caller's own requests get no output from here.
    assert engine.output_queue.empty()


def test_a_second_abort_finds_nothing() -> None:
    engine = _engine(Request("a"))
    engine.call("abort", ids=["a"])
    again = engine.call("abort", ids=["a"])["requests"]["a"]
    assert (again["state"], again["accepted"]) == ("unknown", False)


def test_an_abort_of_nothing_is_answered() -> None:
    assert _engine().call("abort", ids=[])["requests"] == {}


def test_a_finished_request_that_still_holds_memory_is_not_aborted_again() -> None:
    engine = _engine(Request("a"))
    engine.scheduler.requests["a"].status = Status["FINISHED_STOPPED"]
    told = engine.call("abort", ids=["a"])["requests"]["a"]
    assert (told["state"], told["accepted"], told["tokens"]) == ("finished", False, 1)


@pytest.mark.parametrize("old", [False, True])
def test_requests_of_other_frontends_get_a_marked_last_output(old: bool) -> None:
    requests = [Request(name, client_index=index) for name, index in [("a", 0), ("b", 1), ("c", 2)]]
    engine = _engine(*requests, Request("d", client_index=2), old=old)
    reply = engine.call("abort", ids=list("abcd"), client=1)
    assert {name: one["client"] for name, one in reply["requests"].items()} == {
        **{"a": 0, "b": 1, "c": 2, "d": 2}
    }
    sent = dict(engine.output_queue.get_nowait() for _ in range(2))
    assert engine.output_queue.empty()
    assert {client: outputs.finished_requests for client, outputs in sent.items()} == {
        **{0: {"a"}, 2: {"c", "d"}}
    }
    (output,) = sent[0].outputs
    assert (output.finish_reason.name, output.stop_reason, output.new_token_ids) == (
        *("ABORT", "nnrp_abort:running"),
        [],
    )
    assert {one.request_id: one.stop_reason for one in sent[2].outputs} == {
        "c": "nnrp_abort:waiting",
        "d": "nnrp_abort:waiting",
    }


def _told(engine: Engine, **called: tuple[str, str | None, str | None]) -> dict[str, Any]:
    requests = {
        key: {"id": name, "program": program, "agent": agent}
        for key, (name, program, agent) in called.items()
    }
    reply: dict[str, Any] = engine.call("tell", requests=requests)
    return reply


def test_other_frontends_requests_are_stopped_by_what_users_call_them() -> None:
    engine = _engine(
        *(Request(name, client_index=1) for name in ("a-12345678", "b-12345678", "c-12345678")),
        Request("own-12345678", client_index=0),
    )
    called = {"a-12345678": ("1.1", "p", "x"), "c-12345678": ("1.3", "p", None)}
    assert _told(engine, **called, gone=("1.9", "p", "x")) == {"requests": 2}
    assert _told(engine, **{"own-12345678": ("1.4", "p", "x")}) == {"requests": 1}
    by_agent = engine.call("abort", ids=[], names=["x"], by="agent", client=0)["requests"]
    assert {key: (one["name"], one["accepted"]) for key, one in by_agent.items()} == {
        "a-12345678": ("1.1", True)
    }
    by_id = engine.call("abort", ids=[], names=["b", "1.1", "own"], client=0)["requests"]
    assert {key: (one["name"], one["state"]) for key, one in by_id.items()} == {
        "b-12345678": ("b", "waiting")
    }
    by_program = engine.call("abort", ids=["own-12345678"], names=["p"], by="program", client=0)
    assert {key: one.get("name") for key, one in by_program["requests"].items()} == {
        "own-12345678": None,
        "c-12345678": "1.3",
    }
    assert engine.scheduler.requests == {}


def test_what_was_told_of_a_request_goes_with_it() -> None:
    engine = _engine(Request("a", client_index=1), Request("b", client_index=1), slots=2)
    _told(engine, a=("1.1", "p", None), b=("1.2", "p", None))
    watch = watch_of(engine.scheduler)
    assert set(watch.told) == {"a", "b"}
    engine.call("abort", ids=["a"])
    assert set(watch.told) == {"b"}


def test_the_state_of_requests_tells_place_and_times() -> None:
    engine = _engine(Request("a", priority=4), Request("b"), Request("c", client_index=1))
    reply = engine.call("state", ids=["c", "a", "never"])
    a, c = reply["requests"]["a"], reply["requests"]["c"]
    assert (a["state"], a["position"], a["tokens"], a["prompt_tokens"], a["priority"]) == (
        *("running", None, 1, 7, 4),
    )
    assert (c["state"], c["position"], c["scheduled_ns"], c["client"]) == ("waiting", 1, None, 1)
    assert a["queued_ns"] < a["scheduled_ns"]
    assert (a["preemptions"], a["engine_status"]) == (0, "RUNNING")
    assert reply["requests"]["never"]["state"] == "unknown"
    assert reply["total"] == 3


def test_the_state_of_all_is_told_in_order_up_to_the_limit() -> None:
    engine = _engine(*(Request(name) for name in "abcd"))
    engine.scheduler.preempt()
    engine.scheduler.schedule()
    reply = engine.call("state", limit=3)
    states = {name: one["state"] for name, one in reply["requests"].items()}
    assert states == {"b": "running", "c": "waiting", "d": "waiting"}
    assert reply["total"] == 4
    everything = engine.call("state")["requests"]
    assert (everything["a"]["state"], everything["a"]["position"]) == ("preempted", 2)
    assert everything["a"]["preemptions"] == 1
    assert everything["a"]["queued_ns"] < everything["a"]["preempted_ns"]
    assert everything["b"]["preempted_ns"] is None


def test_depths_come_without_a_look_at_any_request() -> None:
    engine = _engine(*(Request(name) for name in "abc"))
    reply = engine.call("queue")
    assert reply.pop("mono_ns") > 0
    assert reply == {
        **{"running": 1, "waiting": 2, "blocked": 0, "policy": "fcfs"},
        **{"kv_usage": 0.25, "step_ns": None, "seq": 4},
    }


def test_priorities_are_changed_under_the_priority_policy_and_refused_under_fcfs() -> None:
    engine = _engine(*(Request(name) for name in "abc"), policy="priority")
    assert engine.call("set_priority", ids={"c": -1, "a": 0}) == {
        "requests": {"c": "applied", "a": "not_waiting"},
        "policy": "priority",
    }
    assert engine.call("state", ids=["c"])["requests"]["c"]["position"] == 0
    assert _engine(Request("a"), Request("b")).call("set_priority", ids={"b": 1}) == {
        "requests": {"b": "policy_fcfs"},
        "policy": "fcfs",
    }


def test_a_poll_is_answered_at_once_or_when_something_happens() -> None:
    engine = _engine(Request("a"))
    batch = engine.call("poll", since=0)
    assert [event[1] for event in batch["events"]] == ["queued", "scheduled"]
    poll = engine.call("poll", since=batch["seq"], wait_s=30.0)
    assert not poll.done()
    engine.call("abort", ids=["a"])
    (event,) = poll.result(timeout=0)["events"]
    assert (event[1], event[4]) == ("finished", {"status": "FINISHED_ABORTED", "tokens": 1})


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        ("abort", {}),
        ("abort", {"ids": "a"}),
        ("state", {"ids": [1]}),
        ("state", {"limit": 0}),
        ("set_priority", {"ids": {"a": 2**63}}),
        ("set_priority", {"ids": {"a": "high"}}),
        ("poll", {"since": None}),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_and_changes_nothing(
    method: str, payload: dict[str, Any]
) -> None:
    engine = _engine(Request("a"), Request("b"), policy="priority")
    assert engine.call(method, **payload)["error"].startswith("bad payload")
    assert set(engine.scheduler.requests) == {"a", "b"}


def test_no_value_that_cannot_be_encoded_leaves_the_engine() -> None:
    engine = _engine(Request("a"), Request("b"))
    odd: Any = engine.scheduler.requests["b"]
    odd.client_index, odd.priority, odd.num_prompt_tokens = object(), lambda: 0, {1j}
    for method in ("state", "queue", "poll"):
        assert msgspec.msgpack.encode(engine.call(method))
    odd.priority = 2**70
    assert set(engine.call("state")) == {"error"}
    assert msgspec.msgpack.encode(engine.call("state", ids=["a"]))
