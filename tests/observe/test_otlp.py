"""Where the spans of our commands go, by OpenTelemetry's own variables."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import ProxyTracerProvider

from nnrp_sched.observe import otlp
from nnrp_sched.observe.meters import MeterObserver
from nnrp_sched.observe.otlp import exported, exported_metrics
from tests.observe.test_diagnostics import FULL

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _no_provider_yet(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # pytest uses it.
    monkeypatch.setattr(otlp, "get_tracer_provider", ProxyTracerProvider)


@contextmanager
def _collector() -> Generator[tuple[str, list[str]]]:
    """An address that takes what is posted, and the paths it was posted to."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "environment",
    [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, {"OTEL_SDK_DISABLED": "true"}],
)
async def test_without_an_endpoint_nothing_is_exported(environment: dict[str, str]) -> None:
    async with exported(environment) as provider:
        assert provider is None


async def test_a_provider_of_the_process_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "get_tracer_provider", TracerProvider)
    async with exported({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) as provider:
        assert provider is None


async def test_without_the_extra_there_is_a_warning_and_no_export(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    async with exported({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) as provider:
        assert provider is None
    assert "nnrp-sched[otlp]" in caplog.text


async def test_spans_are_sent_to_the_endpoint_by_the_time_the_server_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _collector() as (address, paths), anyio.fail_after(20):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        async with exported() as provider:
            assert isinstance(provider, TracerProvider)
            assert provider.resource.attributes["service.name"] == "nnrp-sched"
            provider.get_tracer("any").start_span("one").end()
    assert paths == ["/v1/traces"]


async def test_metrics_are_sent_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with _collector() as (address, paths), anyio.fail_after(20):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        async with exported_metrics() as provider:
            MeterObserver(provider)(FULL)
    assert paths == ["/v1/metrics"]


@pytest.mark.parametrize(
    "environment",
    [{}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9"}],
)
async def test_without_an_endpoint_for_them_no_metrics_are_exported(
    environment: dict[str, str],
) -> None:
    async with exported_metrics(environment) as provider:
        assert provider is None


async def test_without_the_extra_there_is_a_warning_and_no_metrics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    async with exported_metrics({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) as provider:
        assert provider is None
    assert "nnrp-sched[otlp]" in caplog.text


ABSENT_COLLECTOR = """
import time
import anyio
from opentelemetry.sdk.trace import TracerProvider
from nnrp_sched.observe.otlp import exported

async def main() -> None:
    async with exported() as provider:
        assert isinstance(provider, TracerProvider)
        assert provider.resource.attributes["service.name"] == "mine"
        provider.get_tracer("any").start_span("one").end()
        left = time.monotonic()
    print(time.monotonic() - left)

anyio.run(main)
"""


async def test_a_collector_that_is_not_there_keeps_nobody_waiting() -> None:
    # A process of its own: the exporter's thread goes on retrying for a while after the block.
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_SERVICE_NAME": "mine",
    }
    with anyio.fail_after(50):
        done = await anyio.run_process([sys.executable, "-c", ABSENT_COLLECTOR], env=environment)
    assert float(done.stdout) < 5
