"""One endpoint: waits between attempts, signs of life, sessions that fail one by one."""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.client import Connection, connect
from nnrp_sched.errors import ConnectionLost
from nnrp_sched.profile import CONTROL_SCHEMA
from nnrp_sched_orchestrator.backoff import Backoff
from nnrp_sched_orchestrator.errors import EndpointsUnavailable
from nnrp_sched_orchestrator.features import features_of
from nnrp_sched_orchestrator.link import Link, Means
from nnrp_sched_orchestrator.pool import Pool
from nnrp_sched_orchestrator.pool_records import PoolSettings
from tests.support.server_stage import SECONDS, Host, quick, stage, until
from tests.support.serving import script

pytestmark = pytest.mark.anyio


# --- waits ----------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.floats(0.001, 1), st.floats(1, 100), st.integers())
def test_waits_double_to_their_limit_and_are_shortened_by_at_most_half(
    failures: int, first: float, limit: float, seed: int
) -> None:
    backoff = Backoff(first, limit, random.Random(seed).random)
    for number in range(failures):
        longest = min(limit, first * 2 ** min(number, 32))
        assert longest / 2 <= backoff.next() <= longest
    assert backoff.failures == failures
    backoff.reset()
    assert backoff.next() <= first


class Waits:
    """A time that passes only by waiting for it, and an endpoint where nobody is."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.enough = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        if seconds > 1e6:  # Not in this test.
            await anyio.sleep_forever()
        self.slept.append(seconds)
        self.now += seconds
        if len(self.slept) >= 10:
            self.enough.set()
        await anyio.lowlevel.checkpoint()

    @asynccontextmanager
    async def connect(self, name: str) -> AsyncGenerator[Connection, None]:
        await anyio.lowlevel.checkpoint()
        async with connect(f"unix:///nowhere/{name}") as connection:
            yield connection


async def test_a_link_waits_longer_after_each_failure_up_to_a_limit() -> None:
    waits = Waits()
    means = Means(
        waits.connect, lambda: Backoff(0.1, 5.0, lambda: 0.0), waits.sleep, lambda: waits.now
    )
    link = Link("here", quick(), means, lambda: None)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            await waits.enough.wait()
            tasks.cancel_scope.cancel()
    health = link.health(0)
    assert waits.slept[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert health.state == "down"
    assert health.failures >= 10
    assert health.last_error is not None
    assert "nobody answers at unix:///nowhere/here" in health.last_error


async def test_a_connection_that_held_long_is_made_again_at_once() -> None:
    async with stage() as hosts:
        waits = Waits()
        means = Means(
            lambda _: hosts[0].connect(),
            lambda: Backoff(0.1, 5.0, lambda: 0.0),
            waits.sleep,
            lambda: waits.now,
        )
        async with Pool.open("host-0", quick(probe_seconds=1e9), means=means) as pool:
            await hosts[0].kill()
            await until(lambda: len(waits.slept) > 6)
            await hosts[0].start()
            await until(lambda: pool.endpoints[0].state == "up")
            waits.now += 100
            waits.slept.clear()
            await hosts[0].kill()
            await until(lambda: len(waits.slept) > 2)
            assert waits.slept[0] == 0.1


# --- signs of life --------------------------------------------------------------------------------


class Probes:
    """Says when a link asks its server for a sign of life; other waits are short."""

    def __init__(self, host: Host, settings: PoolSettings) -> None:
        self.means = Means(lambda _: host.connect(), lambda: Backoff(0.001, 0.001), self.sleep)
        self.asked = 0
        self.go = anyio.Event()
        self._settings = settings

    async def sleep(self, seconds: float) -> None:
        if seconds == self._settings.probe_seconds:
            await self.go.wait()
            self.asked += 1
        await anyio.lowlevel.checkpoint()


async def test_a_server_that_stops_answering_is_given_up_and_its_calls_are_told() -> None:
    settings = quick(probe_seconds=0.05)
    async with stage() as hosts:
        probes = Probes(hosts[0], settings)
        async with Pool.open("host-0", settings, means=probes.means) as pool:
            ends: list[str] = []

            async def call() -> None:
                async with pool.queue("p", "a") as lease:
                    try:
                        await lease.session.chat(script(text="x", hold=True)).result()
                    except ConnectionLost as error:
                        ends.append(str(error))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await until(lambda: hosts[0].running == 1)
                hosts[0].mute()
                probes.go.set()
                await until(lambda: len(ends) == 1)
                probes.go = anyio.Event()
            await until(lambda: hosts[0].connections > 1 and pool.endpoints[0].state == "up")
            assert pool.in_flight == 0
            assert pool.endpoints[0].last_error is not None


async def test_a_server_that_answers_keeps_its_connection_however_often_it_is_asked() -> None:
    settings = quick(probe_seconds=SECONDS)
    async with stage() as hosts:
        probes = Probes(hosts[0], settings)
        probes.go.set()
        async with Pool.open("host-0", settings, means=probes.means) as pool:
            await until(lambda: probes.asked > 20)
            async with pool.queue("p", "a") as lease:
                outcome = await lease.session.chat(script(text="x " * 50)).result()
                assert outcome.text == "x " * 50
            assert hosts[0].connections == 1


# --- what a server declares -----------------------------------------------------------------------


def test_only_what_is_declared_is_a_feature() -> None:
    nothing = features_of({"profile": "openai-compatible/1"})
    assert not (nothing.control or nothing.workflow or nothing.priority or nothing.idempotency)
    document: dict[str, Any] = {
        "extensions": [{"name": CONTROL_SCHEMA}, {"name": "nnrp.workflow", "critical": False}],
        "models": [{"id": "m", "owned_by": "us"}],
    }
    found = features_of(document)
    assert found.control
    assert found.workflow
    assert not found.priority
    assert found.models == ("m",)
    assert found.max_model_len is None
    document["models"] = [{"id": "m", "max_model_len": 8192}, {"id": "n", "max_model_len": 4096}]
    assert features_of(document).max_model_len == 4096


async def test_a_server_that_refuses_every_session_is_told_with_its_reason() -> None:
    async with stage() as hosts:
        assert hosts[0].server is not None
        hosts[0].server.admission.draining = True
        with anyio.fail_after(SECONDS), pytest.raises(EndpointsUnavailable) as raised:
            async with hosts.pool():
                pass
        assert "host-0" in raised.value.reasons
