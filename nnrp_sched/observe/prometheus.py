"""Metrics of ended operations for Prometheus, in a registry that is there already.

Needs the extra `prometheus`. No port is opened: whoever has the registry serves it, as vLLM does at
its own /metrics; `metrics_served` is for who has nobody.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from nnrp_sched.errors import StartError
from nnrp_sched.observe.labels import abort_labels, bounded, operation_labels
from nnrp_sched.observe.measures import AMOUNTS, DURATIONS, SECONDS
from nnrp_sched.observe.record import OperationRecord

_NAMESPACE: Final = "nnrp_sched"


class PrometheusObserver:
    """Counts and measures each operation it is told of."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Raises `ValueError` when the registry has these metrics already."""
        self._operations = Counter(
            "operations",
            "Operations that ended.",
            ("source", "transport", "outcome", "error"),
            namespace=_NAMESPACE,
            registry=registry,
        )
        self._aborts = Counter(
            "operation_aborts",
            "Operations that somebody wanted to end before they were through.",
            ("source", "cancellation", "accepted"),
            namespace=_NAMESPACE,
            registry=registry,
        )
        self._durations = [
            (
                measure.value,
                Histogram(
                    measure.name,
                    measure.meaning,
                    ("source",),
                    namespace=_NAMESPACE,
                    unit="seconds",
                    buckets=SECONDS,
                    registry=registry,
                ),
            )
            for measure in DURATIONS
        ]
        self._amounts = [
            (
                measure.value,
                Counter(
                    measure.name,
                    measure.meaning,
                    ("source",),
                    namespace=_NAMESPACE,
                    registry=registry,
                ),
            )
            for measure in AMOUNTS
        ]

    def __call__(self, record: OperationRecord) -> None:
        """Count one operation."""
        self._operations.labels(**operation_labels(record)).inc()
        aborted = abort_labels(record)
        if aborted is not None:
            self._aborts.labels(**aborted).inc()
        source = bounded("source", record.source)
        for value, histogram in self._durations:
            seconds = value(record)
            if seconds is not None:
                histogram.labels(source).observe(seconds)
        for value, counter in self._amounts:
            amount = value(record)
            if amount is not None:
                counter.labels(source).inc(amount)


@contextmanager
def metrics_served(registry: CollectorRegistry, host: str, port: int) -> Generator[str, None, None]:
    """Serve a registry at /metrics of a port of its own; the address. Only for who asked for it.

    Port 0 takes a free one. Raises `StartError` when the port cannot be had.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise StartError(
            f"cannot serve metrics at {host}:{port}: {error.strerror or error}"
        ) from error
    try:
        yield f"http://{_bracketed(host)}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
