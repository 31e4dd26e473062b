"""What is reported of the queue against what vLLM's scheduler itself notes of the same requests."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.client.connect import over_carrier
from nnrp_sched.engine.records import QueuedRequest, QueueSnapshot
from nnrp_sched.server import Server
from nnrp_sched.transport import background_tasks, memory_pair
from nnrp_sched_patches.channel import call_engine
from nnrp_sched_patches.launch import Serving
from tests.support.full_engine import SLOTS, full

pytestmark = pytest.mark.anyio

SECONDS = 120
MICROSECOND_MS = 0.001
LATE = ("late-0", "late-1", "late-2")


class Direct:
    """Requests put into vLLM past the engine port: vLLM's own times come with their outputs."""

    def __init__(self, serving: Serving) -> None:
        self._llm = serving.engine.async_llm
        self.own: dict[str, Any] = {}
        """vLLM's RequestStateStats of those that ended."""

    async def serve(self, name: str, tokens: int = 4) -> None:
        sampling = import_module("vllm").SamplingParams(
            max_tokens=tokens, ignore_eos=True, temperature=0.0
        )
        async for output in self._llm.generate({"prompt_token_ids": [1, 2, 3]}, sampling, name):
            if output.finished:
                self.own[name] = output.metrics


async def waiting(serving: Serving) -> tuple[QueueSnapshot, dict[str, QueuedRequest]]:
    """The first snapshot that has all of `LATE` in line."""
    while True:
        snapshot = await serving.engine.queue()
        shown = {one.id: one for one in snapshot.operations if one.id in LATE}
        if len(shown) == len(LATE) and all(one.position is not None for one in shown.values()):
            return snapshot, shown
        await checkpoint()


def assert_final_times_are_the_schedulers_own(serving: Serving, direct: Direct) -> None:
    for name, own in direct.own.items():
        entry = serving.engine.ledger.find(name)
        assert entry is not None
        times = entry.timings
        assert times.queued == pytest.approx(own.queued_ts * 1e3, abs=MICROSECOND_MS)
        assert times.scheduled == pytest.approx(own.scheduled_ts * 1e3, abs=MICROSECOND_MS)
        delay = (own.scheduled_ts - own.queued_ts) * 1e3
        assert entry.queue_delay(0.0) == pytest.approx(delay, abs=2 * MICROSECOND_MS)


async def test_a_delay_is_seen_while_it_lasts_and_ends_as_the_schedulers_own(
    serving: Serving,
) -> None:
    direct = Direct(serving)
    with anyio.fail_after(SECONDS):
        async with full(serving) as tasks:
            for name in LATE:
                tasks.start_soon(direct.serve, name)
            reports = [await waiting(serving) for _ in range(4)]
    for snapshot, shown in reports:
        # The slots were all taken when this was told: none of the three had run yet.
        assert (snapshot.running, snapshot.waiting, snapshot.authoritative) == (
            *(SLOTS, len(LATE)),
            True,
        )
        assert [shown[name].position for name in LATE] == [0, 1, 2]
        for told in shown.values():
            assert (told.state, told.timings.scheduled, told.timings.first_token) == (
                *("waiting", None),
                None,
            )
            assert told.timings.queued is not None
            so_far = snapshot.taken_ms - told.timings.queued
            assert told.queue_delay_ms == pytest.approx(so_far, abs=MICROSECOND_MS)
    for name in LATE:
        delays = [shown[name].queue_delay_ms for _, shown in reports]
        own = direct.own[name]
        final = (own.scheduled_ts - own.queued_ts) * 1e3
        # The hook reads the clock when the request stands in line, just after vLLM did.
        assert delays == sorted(delays)
        assert 0 < delays[0] < delays[-1] < final
        queued = reports[0][1][name].timings.queued
        assert queued is not None
        assert queued >= own.queued_ts * 1e3 - MICROSECOND_MS
    started = [direct.own[name].scheduled_ts for name in LATE]
    assert started == sorted(started)
    assert_final_times_are_the_schedulers_own(serving, direct)


async def test_final_times_are_right_although_nothing_of_the_transitions_came(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, direct = serving.engine.ledger, Direct(serving)
    unheard: list[str] = []

    def event(kind: str, *_: Any) -> None:
        unheard.append(kind)

    monkeypatch.setattr(ledger, "event", event)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for number in range(SLOTS + 2):
                tasks.start_soon(direct.serve, f"unheard-{number}")
    assert "scheduled" in unheard
    assert len(direct.own) == SLOTS + 2
    assert_final_times_are_the_schedulers_own(serving, direct)
    assert ledger.live == []


async def test_consumers_that_stop_hold_up_nothing_and_have_missed_nothing_when_they_go_on(
    serving: Serving,
) -> None:
    llm, direct = serving.engine.async_llm, Direct(serving)
    idle = {"since": 0, "max": 1, "wait_s": 60.0}
    with anyio.fail_after(SECONDS):
        depths = await call_engine(llm, "nnrp_queue", {}, wait_s=SECONDS)
        since = depths["seq"]
        async with reader(serving) as watching:
            await anext(watching)
            # One has an answer and never asks again, another one asks and never hears the answer.
            first = await call_engine(llm, "nnrp_poll", {**idle, "client": 98}, wait_s=SECONDS)
            assert len(first["events"]) == 1
            with anyio.move_on_after(0.01):
                await call_engine(
                    llm, "nnrp_poll", {**idle, "client": 99, "since": since}, wait_s=SECONDS
                )
            async with anyio.create_task_group() as tasks:
                for number in range(3 * SLOTS):
                    tasks.start_soon(direct.serve, f"beside-{number}")
            assert serving.engine.ledger.live == []
            while (await anext(watching)).operations:
                pass
        wanted = {"since": since, "max": 4096, "wait_s": 0.0, "client": 99}
        late = await call_engine(llm, "nnrp_poll", wanted, wait_s=SECONDS)
    events = [event for event in late["events"] if event[2].startswith("beside-")]
    numbers = [event[0] for event in late["events"]]
    assert late["dropped"] == 0
    assert numbers == list(range(since + 1, since + 1 + len(numbers)))
    for kind in ("queued", "scheduled", "finished"):
        assert len({event[2] for event in events if event[1] == kind}) == 3 * SLOTS
    assert len(direct.own) == 3 * SLOTS
    assert_final_times_are_the_schedulers_own(serving, direct)


@asynccontextmanager
async def reader(serving: Serving) -> AsyncGenerator[AsyncGenerator[QueueSnapshot], None]:
    """`queue.watch` over NNRP, as often as there is anything new."""
    async with background_tasks() as tasks:
        server = Server(serving.engine)
        ours, theirs = memory_pair()
        tasks.start_soon(server.serve_carrier, theirs)
        async with (
            over_carrier(ours) as connection,
            connection.session() as session,
            aclosing(session.watch_queue(per_second=50)) as watching,
        ):
            yield watching
        with anyio.CancelScope(shield=True):
            await server.drain(0)
