"""Aborts at every boundary between two steps of an engine that preempts, chunks and caches.

Each engine runs with chunked prefill, prefix caching and a KV cache too small for what runs, with
asynchronous scheduling off and on. `NNRP_SCHED_FUZZ_ROUNDS` sets how many rounds of aborts.
"""

import logging
import os
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from packaging.version import Version

from nnrp_sched.engine.port import ChatCall
from nnrp_sched_patches.launch import LaunchOptions, Serving, launch
from nnrp_sched_patches.version import installed_vllm
from tests.support import step_recorder
from tests.support.abort_fuzz import (
    BOUNDARIES,
    QUESTIONS,
    Answer,
    Round,
    divergence,
    parting,
    plans_of,
)
from tests.support.step_gate import StepGate, step_gate
from tests.support.step_recorder import Life, Scheduled
from tests.support.vllm_chats import body

pytestmark = pytest.mark.anyio

_LOGGER = logging.getLogger(__name__)

ROUNDS = int(os.environ.get("NNRP_SCHED_FUZZ_ROUNDS", "2"))
NEAR_TIE = 1e-3
"""Two tokens whose log-probabilities differ by less may change places with the batch's rounding."""

_ASYNC_SINCE = Version("0.26.0")
"""Older ones use `torch.cuda` in that mode; their worker dies on a CPU (hooks-verified.md 5)."""
_FLAGS = (
    *("--max-num-seqs", "6", "--max-num-batched-tokens", "40", "--enable-chunked-prefill"),
    *("--enable-prefix-caching", "--block-size", "32"),
    *("--max-model-len", "256", "--num-gpu-blocks-override", "10"),
)


@dataclass
class Engine:
    """A serving and the gate between its steps."""

    serving: Serving
    gate: StepGate
    asynchronous: bool


def _asynchronous() -> bool:
    installed = installed_vllm()
    assert installed is not None
    assert installed.version is not None
    return Version(installed.version) >= _ASYNC_SINCE


@pytest.fixture(scope="module", params=["one step after the other", "asynchronous"])
async def fuzzed(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Engine]:
    """An engine whose steps wait for this test."""
    del anyio_backend
    asynchronous = request.param == "asynchronous"
    if asynchronous and not _asynchronous():
        pytest.skip("asynchronous scheduling: this vLLM cannot do it on a CPU")
    scheduler = step_recorder.ASYNC_SCHEDULER if asynchronous else step_recorder.SCHEDULER
    arguments = (*_FLAGS, "--scheduler-cls", scheduler)
    with pytest.MonkeyPatch.context() as patch:
        if asynchronous:
            _force_asynchronous(patch)
        async with step_gate() as gate:
            patch.setenv(step_recorder.VARIABLE, gate.address)
            async with launch(LaunchOptions(patch=True, vllm_arguments=arguments)) as serving:
                yield Engine(serving, gate, asynchronous)


def _force_asynchronous(patch: pytest.MonkeyPatch) -> None:
    """Set the flag after vLLM's CPU platform has cleared it (hooks-verified.md C5)."""
    arguments: Any = import_module("vllm.engine.arg_utils").AsyncEngineArgs
    original = arguments.create_engine_config

    def forced(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = original(self, *args, **kwargs)
        config.scheduler_config.async_scheduling = True
        return config

    patch.setattr(arguments, "create_engine_config", forced)


async def test_aborts_at_each_boundary_leave_survivors_and_engine_as_they_were(
    fuzzed: Engine,
) -> None:
    engine, gate = fuzzed.serving.engine, fuzzed.gate
    everything = range(len(QUESTIONS))
    # The first logprobs of a process take long on some versions.
    await engine.complete(ChatCall("warm", body(logprobs=True, max_tokens=2)))
    with anyio.fail_after(200 + 40 * ROUNDS):
        expected = await Round(engine, gate, "first", {}).run(everything, len(QUESTIONS))
        # The same in other batches: how far the text depends on who else is there.
        again = await Round(engine, gate, "again", {}).run(everything[::-2], 5)
        rounds: list[dict[int, Answer]] = []
        for number in range(ROUNDS):
            chance = random.Random(number)
            order = chance.sample(everything, len(QUESTIONS))
            plans = plans_of(number, chance)
            asked = Round(engine, gate, f"{number}abort", plans, preempted=2)
            rounds.append(await asked.run(order, 12))
        await _nothing_stayed(fuzzed)
    lives = step_recorder.read(fuzzed.gate.lines).lives
    changed = [divergence(expected[number], again[number]) for number in again]
    survivors = 0
    for number, answer in ((n, answer) for answers in rounds for n, answer in answers.items()):
        if answer.receipt is None or not answer.receipt.accepted:
            survivors += 1
            changed.append(divergence(expected[number], answer))
            continue
        assert answer.receipt.authoritative
        assert answer.reason == ("499" if answer.receipt.state == "admitting" else "abort")
        # What came of it until then is the same text.
        changed.append(parting(expected[number], answer))
        assert len(answer.tokens) <= (answer.receipt.tokens or 0)
    moved = [gap for gap in changed if gap is not None]
    # Shown by `pytest -rP --log-level INFO`.
    _LOGGER.info(
        "survivors %d, compared %d, parted %s, preemptions %d, aborted in %s",
        survivors,
        len(changed),
        moved,
        sum(life.preempted for life in lives.values()),
        sorted(_aborted(lives).items(), key=str),
    )
    _conditions_were_met(fuzzed, lives)
    assert survivors >= ROUNDS * len(QUESTIONS) // 2
    assert all(gap < NEAR_TIE for gap in moved), moved
    # Not one text repeated: that they are equal says something.
    assert len({"".join(answer.tokens) for answer in expected.values()}) > 0.9 * len(QUESTIONS)


def _aborted(lives: dict[str, Life]) -> Counter[tuple[str | None, int]]:
    """Of the aborted ones, how many stood so and had run so many steps."""
    return Counter(
        (life.stood, len(life.steps))
        for life in lives.values()
        if life.status == "FINISHED_ABORTED"
    )


async def _nothing_stayed(fuzzed: Engine) -> None:
    """No zombie in the frontend, the ledger or the engine, and every block of its cache free."""
    engine = fuzzed.serving.engine
    processor = engine.async_llm.output_processor
    assert (processor.request_states, processor.parent_requests) == ({}, {})
    assert dict(processor.external_req_ids) == {}
    assert (engine.calls_in_flight, engine.ledger.live) == (0, [])
    while True:
        depths = await engine.async_llm.engine_core.call_utility_async("nnrp_queue", {})
        if not depths["kv_usage"]:
            break
        # With steps in flight a block is free when the last of them is over.
        await checkpoint()
    assert (depths["running"], depths["waiting"], depths["blocked"]) == (0, 0, 0)


def _conditions_were_met(fuzzed: Engine, lives: dict[str, Life]) -> None:
    """What the fuzzing is about did happen: preemption, chunks, cache hits, every boundary."""
    (hello,) = [one for one in fuzzed.serving.receipts if one.process == "engine"]
    assert (hello.batch_queue_size or 1) == (2 if fuzzed.asynchronous else 1)
    assert sum(life.preempted for life in lives.values()) >= ROUNDS
    first: dict[str, list[int]] = defaultdict(list)
    for line in fuzzed.gate.lines:
        if isinstance(line, Scheduled):
            for one, tokens in line.tokens.items():
                first[one].append(tokens)
    # A prompt computed in more than one piece.
    assert any(len(tokens) > 1 and min(tokens[:2]) > 1 for tokens in first.values())
    registry = import_module("prometheus_client").REGISTRY
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    assert sum(one.value for one in samples if one.name == "vllm:prefix_cache_hits_total") > 0
    for life in lives.values():
        assert life.ends == 1
        if life.asked_in is not None:
            assert all(step <= life.asked_in for step in life.steps)
    aborted = _aborted(lives)
    assert {"WAITING", "RUNNING", "PREEMPTED"} <= {stood for stood, _ in aborted}
    # A step may overtake an abort, so that it comes one boundary later.
    met = {steps for stood, steps in aborted if stood == "RUNNING"}
    assert len(met & set(range(1, BOUNDARIES + 2))) >= min(ROUNDS, 2) * BOUNDARIES // 2 - 2
