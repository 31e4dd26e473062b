"""Where the spans of our own commands go: OpenTelemetry's variables, unchanged.

A program that embeds us sets a provider of its own, and needs none of this.
"""

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.to_thread
from opentelemetry.trace import ProxyTracerProvider, TracerProvider, get_tracer_provider

_LOGGER = logging.getLogger(__name__)

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
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
    wanted = any(environment.get(name) for name in _ENDPOINTS)
    if not wanted or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield None
        return
    provider = _provider(environment)
    try:
        yield provider
    finally:
        if provider is not None:
            with anyio.move_on_after(_FLUSH_SECONDS, shield=True):
                await anyio.to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)


def _provider(environment: Mapping[str, str]) -> Any:
    if not isinstance(get_tracer_provider(), ProxyTracerProvider):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider as SdkProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _LOGGER.warning("no spans are exported: pip install 'nnrp-sched[otlp]'")
        return None
    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if named else {"service.name": "nnrp-sched"})
    provider = SdkProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
