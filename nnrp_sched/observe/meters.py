"""Metrics of ended operations for OpenTelemetry.

Over opentelemetry-api alone, as the spans are: without an SDK they cost next to nothing.
"""

from opentelemetry.metrics import MeterProvider, get_meter

from nnrp_sched import __version__
from nnrp_sched.observe.labels import abort_labels, bounded, operation_labels
from nnrp_sched.observe.measures import AMOUNTS, DURATIONS, SECONDS
from nnrp_sched.observe.record import OperationRecord


class MeterObserver:
    """Counts and measures each operation it is told of."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        """They go to `provider`, by default to the one that the process has or will have."""
        meter = get_meter("nnrp_sched", __version__, meter_provider=provider)
        self._operations = meter.create_counter(
            "nnrp.operations", unit="{operation}", description="Operations that ended."
        )
        self._aborts = meter.create_counter(
            "nnrp.operation.aborts",
            unit="{operation}",
            description="Operations that somebody wanted to end before they were through.",
        )
        self._durations = [
            (
                measure.value,
                meter.create_histogram(
                    measure.convention,
                    unit="s",
                    description=measure.meaning,
                    explicit_bucket_boundaries_advisory=SECONDS,
                ),
            )
            for measure in DURATIONS
        ]
        self._amounts = [
            (measure.value, meter.create_counter(measure.convention, description=measure.meaning))
            for measure in AMOUNTS
        ]

    def __call__(self, record: OperationRecord) -> None:
        """Count one operation. Raises what the provider's readers raise."""
        self._operations.add(1, operation_labels(record))
        aborted = abort_labels(record)
        if aborted is not None:
            self._aborts.add(1, aborted)
        labels = {"source": bounded("source", record.source)}
        for value, histogram in self._durations:
            seconds = value(record)
            if seconds is not None:
                histogram.record(seconds, labels)
        for value, counter in self._amounts:
            amount = value(record)
            if amount is not None:
                counter.add(amount, labels)
