"""The facts of a record under the adapter's names (adapter facts 5.6)."""

import json
import logging
from typing import Any

import msgspec
import pytest

from nnrp_sched.observe.diagnostics import diagnostics
from nnrp_sched.observe.log import NAME, log_operation
from nnrp_sched.observe.record import (
    AbortObservation,
    Intervals,
    OperationRecord,
    TraceObservation,
)
from nnrp_sched.profile.scheduling import AbortReceipt, Timings

SCANT = OperationRecord(
    id="1.1", source="nnrp", operation="chat", outcome="failed", began=10.0, ended=10.5
)
FULL = OperationRecord(
    id="7.1",
    source="nnrp",
    operation="chat",
    profile_operation="chat.completions.create",
    outcome="cancelled",
    began=1000.0,
    ended=1100.25,
    model="m",
    engine="vllm",
    binding="0.31.x",
    engine_version="0.32.0",
    request_id="r",
    transport="quic",
    connection_id=3,
    session_id=7,
    frame_id=1,
    operation_id=2**63,
    header_trace_id=5,
    program="p",
    agent="a",
    parent="b",
    streaming=True,
    dispatched=1001.0,
    first_event=1030.0,
    events=3,
    event_bytes=300,
    intervals=Intervals(2, 9.0, 6.0),
    timings=Timings(1001, 1002, 1003, 1010, 1020, 1015, 1090),
    input_tokens=4,
    output_tokens=3,
    finish_reasons=("abort",),
    abort=AbortObservation(
        "cancel",
        1080.0,
        1082.0,
        AbortReceipt("r", "running", True, True, 3, 1.5),
        source="subagent",
        reason_code=1,
    ),
    trace=TraceObservation(1, 2, 3, 4, 1, 99, "session"),
)


def test_every_fact_of_the_seed_and_of_the_adapter_has_its_value() -> None:
    facts = diagnostics(FULL)
    expected = {
        "model_id": "m",
        "profile_operation": "chat.completions.create",
        "connection_id": 3,
        "session_id": 7,
        "operation_id": 2**63,
        "frame_id": 1,
        "queue_delay_ms": 7.0,
        "admission_latency_ms": 1.0,
        "preprocessing_latency_ms": 2.0,
        "prefill_latency_ms": 10.0,
        "decode_latency_ms": 70.0,
        "first_event_latency_ms": 30.0,
        "inter_event_latency_mean_ms": 4.5,
        "inter_event_latency_max_ms": 6.0,
        "terminal_latency_ms": 100.25,
        "output_event_count": 3,
        "output_bytes": 300,
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "total_tokens": 7,
        "selected_transport": "quic",
        "backend_family": "vllm",
        "backend_binding": "0.31.x",
        "backend_version": "0.32.0",
        "terminal_outcome": "cancelled",
        "cancellation_kind": "cancel",
        "cancellation_source": "subagent",
        "cancellation_reason_code": 1,
        "backend_abort_accepted": True,
        "backend_abort_state": "running",
        "backend_abort_latency_ms": 2.0,
        "trace_id": 5,
        "trace_context_id": 1,
        "trace_span_id": 2,
        "trace_parent_span_id": 3,
        "trace_stage_code": 4,
        "trace_flags": 1,
        "trace_attribute_bytes": 99,
    }
    assert {name: facts[name] for name in expected} == expected


def test_what_nobody_knows_is_null_and_the_names_are_always_the_same() -> None:
    scant, full = diagnostics(SCANT), diagnostics(FULL)
    assert list(scant) == list(full)
    known = {name for name, value in scant.items() if value is not None}
    assert known == {
        *("operation", "source", "terminal_outcome", "terminal_latency_ms"),
        *("output_event_count", "output_bytes"),
    }


@pytest.mark.parametrize(
    ("changes", "fact", "value"),
    [
        ({"outcome": "silent"}, "terminal_outcome", "dropped"),
        ({"error_family": "ValueError"}, "error_family", "ValueError"),
        ({"drop_reason": "superseded"}, "drop_reason", "superseded"),
        ({"abort": AbortObservation("lost", 1, 2)}, "cancellation_kind", "peer_disconnect"),
        ({"abort": AbortObservation("expire_at", 1, 2)}, "cancellation_kind", "deadline_expired"),
        ({"abort": AbortObservation("supersede", 1, 2)}, "cancellation_kind", "supersede"),
        ({"abort": AbortObservation("lost", 1, 2)}, "backend_abort_accepted", None),
        ({"first_event": 9.0}, "first_event_latency_ms", 0.0),
    ],
)
def test_a_fact_follows_from_the_record(changes: dict[str, Any], fact: str, value: object) -> None:
    assert diagnostics(msgspec.structs.replace(SCANT, **changes))[fact] == value


def test_the_facts_are_json() -> None:
    assert json.loads(json.dumps(diagnostics(FULL))) == diagnostics(FULL)


def test_the_log_has_one_line_of_json_with_the_same_facts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "nnrp_sched.operation"):
        log_operation(FULL)
    (line,) = caplog.messages
    name, _, document = line.partition(" ")
    assert name == NAME
    assert json.loads(document) == diagnostics(FULL)


def test_nothing_is_logged_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "nnrp_sched.operation"):
        log_operation(FULL)
    assert caplog.messages == []
