"""Metrics of operations: what is counted, and that no label's values can grow without end."""

import json
import socket
import urllib.request
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from nnrp_sched.errors import StartError
from nnrp_sched.observe.labels import NONE, OTHER, VALUES, abort_labels, operation_labels
from nnrp_sched.observe.meters import MeterObserver
from nnrp_sched.observe.observers import Observers
from nnrp_sched.observe.prometheus import PrometheusObserver, metrics_served
from nnrp_sched.observe.record import AbortObservation, OperationRecord
from tests.observe.test_diagnostics import FULL, SCANT


def counted(*records: OperationRecord) -> Mapping[tuple[str, str], float]:
    """Every sample by its name and its labels."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    for record in records:
        observer(record)
    return {
        (sample.name, json.dumps(sample.labels, sort_keys=True)): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


def labels(**values: str) -> str:
    return json.dumps(values, sort_keys=True)


def test_operations_are_counted_by_how_they_ended() -> None:
    samples = counted(FULL, FULL, SCANT)
    ended = {"source": "nnrp", "transport": "quic", "outcome": "cancelled", "error": "none"}
    assert samples["nnrp_sched_operations_total", labels(**ended)] == 2
    failed = {"source": "nnrp", "transport": "none", "outcome": "failed", "error": "none"}
    assert samples["nnrp_sched_operations_total", labels(**failed)] == 1


def test_times_are_seconds_and_only_of_operations_that_have_them() -> None:
    samples = counted(FULL, SCANT)
    source = labels(source="nnrp")
    assert samples["nnrp_sched_operation_duration_seconds_count", source] == 2
    assert samples["nnrp_sched_operation_queue_delay_seconds_count", source] == 1
    assert samples["nnrp_sched_operation_queue_delay_seconds_sum", source] == pytest.approx(0.007)
    assert samples["nnrp_sched_operation_per_token_seconds_sum", source] == pytest.approx(0.035)
    assert samples["nnrp_sched_operation_abort_latency_seconds_sum", source] == pytest.approx(0.002)


def test_tokens_events_and_aborts_are_counted() -> None:
    samples = counted(FULL, FULL)
    source = labels(source="nnrp")
    assert samples["nnrp_sched_operation_events_total", source] == 6
    assert samples["nnrp_sched_operation_event_bytes_total", source] == 600
    assert samples["nnrp_sched_operation_prompt_tokens_total", source] == 8
    assert samples["nnrp_sched_operation_completion_tokens_total", source] == 6
    aborted = labels(source="nnrp", cancellation="cancel", accepted="true")
    assert samples["nnrp_sched_operation_aborts_total", aborted] == 2


@given(text=st.text())
def test_no_value_that_others_choose_becomes_a_label(text: str) -> None:
    record: OperationRecord = msgspec.structs.replace(
        FULL,
        id=text,
        model=text,
        program=text,
        agent=text,
        transport=text,
        error_code=text,
        error_family=text,
        request_id=text,
        abort=AbortObservation(text, 1, 2, source=text),
    )
    found = operation_labels(record) | (abort_labels(record) or {})
    for label, value in found.items():
        assert value in VALUES[label] | {OTHER, NONE}


def test_a_registry_takes_the_metrics_once() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusObserver(registry)


def test_metrics_are_served_while_asked_for_and_no_longer() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry)(FULL)
    with metrics_served(registry, "127.0.0.1", 0) as address:
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        assert "nnrp_sched_operations_total" in text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(StartError, match=f"127.0.0.1:{port}"),
            metrics_served(CollectorRegistry(), "127.0.0.1", port),
        ):
            pass


def test_opentelemetry_gets_the_same_under_its_own_names() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    observer = MeterObserver(provider)
    observer(FULL)
    observer(SCANT)
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    found: dict[str, Any] = {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert found["gen_ai.server.request.duration"].unit == "s"
    (duration,) = found["gen_ai.server.request.duration"].data.data_points
    assert (duration.count, dict(duration.attributes)) == (2, {"source": "nnrp"})
    (first,) = found["gen_ai.server.time_to_first_token"].data.data_points
    assert first.sum == pytest.approx(0.02)
    points = found["nnrp.operations"].data.data_points
    assert sorted(point.attributes["outcome"] for point in points) == ["cancelled", "failed"]
    (aborts,) = found["nnrp.operation.aborts"].data.data_points
    assert (aborts.value, aborts.attributes["accepted"]) == (1, "true")


def test_without_a_provider_metrics_cost_nothing_and_go_nowhere() -> None:
    MeterObserver()(FULL)


def test_an_exporter_that_fails_keeps_no_other_from_its_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_record: OperationRecord) -> None:
        raise OSError("the disk is full")

    registry = CollectorRegistry()
    everybody = Observers([broken, PrometheusObserver(registry), broken])
    everybody(FULL)
    everybody(FULL)
    ended = {"source": "nnrp", "transport": "quic", "outcome": "cancelled", "error": "none"}
    assert registry.get_sample_value("nnrp_sched_operations_total", ended) == 2
    assert everybody.failures == 4
    assert len(caplog.records) == 2
