"""Who is told of ended operations when a server of ours runs."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from nnrp_sched.errors import StartError
from nnrp_sched.observe.log import log_operation
from nnrp_sched.observe.meters import MeterObserver
from nnrp_sched.observe.observers import Observer, Observers
from nnrp_sched.observe.otlp import exported, exported_metrics
from nnrp_sched.observe.spans import SpanObserver

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class MetricsAddress(Struct, frozen=True):
    """Where /metrics is to be served."""

    host: str
    port: int


class Watching(Struct, frozen=True):
    """The exporters of a running server."""

    observers: Observers
    metrics: str | None
    """The address of /metrics, when a port of its own was asked for."""


def _address(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> MetricsAddress | None:
    if text is None:
        return None
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT")
    return MetricsAddress(host.strip("[]"), int(port))


metrics_option = click.option(
    "--metrics",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve Prometheus metrics at http://HOST:PORT/metrics, on a port of their own. Default: no"
    " port is opened.",
)


@asynccontextmanager
async def watching(
    address: MetricsAddress | None, *, in_engine_registry: bool
) -> AsyncGenerator[Watching, None]:
    """The exporters, as flags and environment ask for them.

    With `in_engine_registry` the Prometheus metrics stand in the process's own registry, which
    vLLM's HTTP server serves at its /metrics. Raises `StartError` when the port cannot be had.
    """
    async with AsyncExitStack() as stack:
        # The engine runs by now: if it has set providers, spans and metrics go there.
        observers: list[Observer] = [
            SpanObserver(await stack.enter_async_context(exported())),
            MeterObserver(await stack.enter_async_context(exported_metrics())),
            log_operation,
        ]
        served: str | None = None
        if address is not None or in_engine_registry:
            registry = _registry(in_engine_registry, wanted=address is not None)
            if registry is not None:
                from nnrp_sched.observe.prometheus import PrometheusObserver, metrics_served

                observers.append(PrometheusObserver(registry))
                if address is not None:
                    port = metrics_served(registry, address.host, address.port)
                    served = stack.enter_context(port)
        yield Watching(Observers(observers), served)


def _registry(in_engine_registry: bool, *, wanted: bool) -> "CollectorRegistry | None":
    try:
        from prometheus_client import REGISTRY, CollectorRegistry
    except ImportError as error:
        if not wanted:
            return None
        raise StartError("--metrics needs: pip install 'nnrp-sched[prometheus]'") from error
    return REGISTRY if in_engine_registry else CollectorRegistry()
