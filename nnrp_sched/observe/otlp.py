"""Where spans and metrics of our own commands go: OpenTelemetry's variables, unchanged.

A program that embeds us sets a provider of its own, and needs none of this.
"""

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.to_thread
from opentelemetry.metrics import MeterProvider, get_meter_provider
from opentelemetry.trace import ProxyTracerProvider, TracerProvider, get_tracer_provider

_LOGGER = logging.getLogger(__name__)

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_FLUSH_SECONDS: Final = 3.0


@asynccontextmanager
async def exported(
    environment: Mapping[str, str] = os.environ,
) -> AsyncGenerator[TracerProvider | None, None]:
    """A provider that exports over OTLP/HTTP, when the environment names an endpoint for it.

    None when it names none, when the process has a provider already (vLLM sets one for its own
    `--otlp-traces-endpoint`), and, with a warning, when the extra `otlp` is not installed. What
    waits on leaving gets a moment to be sent.
    """
    provider = _tracers(environment) if _wanted("TRACES", environment) else None
    async with _shut_down(provider):
        yield provider


@asynccontextmanager
async def exported_metrics(
    environment: Mapping[str, str] = os.environ,
) -> AsyncGenerator[MeterProvider | None, None]:
    """Like `exported`, for metrics."""
    provider = _meters(environment) if _wanted("METRICS", environment) else None
    async with _shut_down(provider):
        yield provider


@asynccontextmanager
async def _shut_down(provider: Any) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        if provider is not None:
            with anyio.move_on_after(_FLUSH_SECONDS, shield=True):
                await anyio.to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)


def _wanted(signal: str, environment: Mapping[str, str]) -> bool:
    named = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", _ENDPOINT)
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not disabled and any(environment.get(name) for name in named)


def _tracers(environment: Mapping[str, str]) -> Any:
    if not isinstance(get_tracer_provider(), ProxyTracerProvider):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider as SdkProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _LOGGER.warning("no spans are exported: pip install 'nnrp-sched[otlp]'")
        return None
    provider = SdkProvider(resource=_resource(environment), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _meters(environment: Mapping[str, str]) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider as SdkProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ImportError:
        _LOGGER.warning("no metrics are exported: pip install 'nnrp-sched[otlp]'")
        return None
    if isinstance(get_meter_provider(), SdkProvider):
        return None
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    return SdkProvider([reader], resource=_resource(environment), shutdown_on_exit=False)


def _resource(environment: Mapping[str, str]) -> Any:
    """Who exports, unless the environment says it."""
    from opentelemetry.sdk.resources import Resource

    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return Resource.create({} if named else {"service.name": "nnrp-sched"})
