"""Which exporters a server of ours has, by its flags and its environment."""

import socket
import sys

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from nnrp_sched.cli.observers import MetricsAddress, watching
from nnrp_sched.errors import StartError
from tests.observe.test_diagnostics import FULL

pytestmark = pytest.mark.anyio
ENDED = {"source": "nnrp", "transport": "quic", "outcome": "cancelled", "error": "none"}


async def test_beside_an_engine_metrics_stand_in_its_registry_and_open_no_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    async with watching(None, in_engine_registry=True) as watch:
        watch.observers(FULL)
        assert watch.metrics is None
    assert registry.get_sample_value("nnrp_sched_operations_total", ENDED) == 1


async def test_without_flag_and_engine_there_are_no_prometheus_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    async with watching(None, in_engine_registry=False) as watch:
        watch.observers(FULL)
        assert watch.metrics is None
    assert list(registry.collect()) == []


async def test_without_the_extra_only_the_flag_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with watching(None, in_engine_registry=True) as watch:
        watch.observers(FULL)
    with pytest.raises(StartError, match=r"nnrp-sched\[prometheus\]"):
        async with watching(MetricsAddress("127.0.0.1", 0), in_engine_registry=True):
            pass


async def test_a_port_for_metrics_that_is_taken_is_an_error_of_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = MetricsAddress("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(StartError, match="cannot serve metrics"):
            async with watching(address, in_engine_registry=False):
                pass
