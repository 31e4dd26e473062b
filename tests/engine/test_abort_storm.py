"""Aborts at random moments on a busy engine: each receipt is true, and nothing stays behind.

`NNRP_SCHED_ABORTS` sets how many chats there are; 2,000 is the full measure of a release.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnrp_sched.engine.port import ChatCall
from nnrp_sched_patches.launch import LaunchOptions, Serving, launch
from tests.support import step_recorder
from tests.support.abort_storm import Chat, Storm, chat_name, parts_of, planned, untruth
from tests.support.step_recorder import Life
from tests.support.vllm_chats import body

pytestmark = pytest.mark.anyio

CHATS = int(os.environ.get("NNRP_SCHED_ABORTS", "300"))
SECONDS_A_CHAT = 0.6
"""On a machine that does much else; a quiet one has twenty chats a second."""

_SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
_FLAGS = (
    *("--scheduler-cls", step_recorder.SCHEDULER),
    # Random weights, and few: what is said does not matter here, and there are many steps.
    *("--load-format", "dummy", "--hf-overrides", json.dumps(_SIZES)),
    # Room for two or three of the long chats: the others are preempted.
    *("--max-model-len", "256", "--block-size", "32", "--num-gpu-blocks-override", "14"),
)
_POLLING_CLIENT = 4711
"""Another one than the ledger's own."""


@dataclass
class Outcome:
    """What a storm left: the callers' view, the witness's, the hooks' and vLLM's own."""

    chats: list[Chat]
    lives: dict[str, Life]
    """By internal id, those of the chats."""
    settling: int
    """Chats of one token that were had after the storm, until vLLM's gauges were fresh."""
    transitions: list[tuple[int, str, str, int, Any]]
    counters: Counter[str]
    """How far vLLM's counters rose: by name, and name and label."""
    over_limit: dict[str, float]
    """By histogram, how many samples are longer than the whole storm was."""
    left_behind: dict[str, int]
    depths: dict[str, Any]


@pytest.fixture(scope="module")
async def storm(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Outcome]:
    """The storm, over."""
    del anyio_backend
    steps = tmp_path_factory.mktemp("storm") / "steps"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(step_recorder.VARIABLE, str(steps))
        async with launch(LaunchOptions(patch=True, vllm_arguments=_FLAGS)) as serving:
            yield await _weather(serving, steps)


async def _weather(serving: Serving, steps: Path) -> Outcome:
    engine = serving.engine
    # The first random sampling takes up to half a minute on some versions.
    await engine.complete(ChatCall("warm", body(temperature=0.7, n=2, max_tokens=2)))
    storm = Storm(engine, planned(CHATS, seed=3))
    transitions: list[tuple[int, str, str, int, Any]] = []
    left_behind: dict[str, int] = {}
    depths: dict[str, Any] = {}
    settling = 0
    before, began = _counters(), anyio.current_time()
    with anyio.move_on_after(60 + CHATS * SECONDS_A_CHAT) as patience:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_follow, serving, transitions)
            await storm.run()
            processor = engine.async_llm.output_processor
            left_behind |= {
                "request_states": len(processor.request_states),
                "parent_requests": len(processor.parent_requests),
                "external_req_ids": len(processor.external_req_ids),
                "calls": engine.calls_in_flight,
                "ledger": len(engine.ledger.live),
                "first tokens awaited": len(engine.ledger.without_token),
            }
            settling += await _settled(serving)
            depths |= await engine.async_llm.engine_core.call_utility_async("nnrp_queue", {})
            tasks.cancel_scope.cancel()
    lasted_s = anyio.current_time() - began
    steps_ms = sorted(step_recorder.read_file(steps).durations_ms)
    assert not patience.cancelled_caught, (
        f"{sum(chat.over.is_set() for chat in storm.chats)} of {CHATS} chats ended in"
        f" {lasted_s:.0f} s; median step {steps_ms[len(steps_ms) // 2]:.0f} ms of {len(steps_ms)};"
        f" open: {[chat for chat in storm.chats if not chat.over.is_set()]}"
    )
    lives = step_recorder.read_file(steps).lives
    rise = _counters()
    rise.subtract(before)
    return Outcome(
        chats=storm.chats,
        lives={one: life for one, life in lives.items() if chat_name(one) != "warm"},
        settling=settling,
        transitions=[one for one in transitions if chat_name(one[2]) != "warm"],
        counters=rise,
        over_limit={name: _longer_than(lasted_s, name, rise) for name in _HISTOGRAMS},
        left_behind=left_behind,
        depths=depths,
    )


async def _follow(serving: Serving, transitions: list[tuple[int, str, str, int, Any]]) -> None:
    """Take down what the engine's hooks tell, as it happens."""
    asked: dict[str, Any] = {"since": 0, "max": 4096, "wait_s": 1.0, "client": _POLLING_CLIENT}
    while True:
        reply = await serving.engine.async_llm.engine_core.call_utility_async("nnrp_poll", asked)
        assert not reply["dropped"]
        transitions += [tuple(one) for one in reply["events"]]
        asked["since"] = reply["seq"]


async def _settled(serving: Serving) -> int:
    """Have chats of one token until vLLM's gauges say that nothing runs or waits."""
    gauges: Counter[str] = Counter()
    for number in range(50):
        call = ChatCall(f"settle{number}", body(max_tokens=1, ignore_eos=True))
        await serving.engine.complete(call)
        gauges = _counters(("vllm:num_requests_running", "vllm:num_requests_waiting"))
        if not any(gauges.values()):
            return number + 1
    raise AssertionError(f"vLLM's gauges stay up: {gauges}")


_HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:e2e_request_latency_seconds",
)
_COUNTERS = (
    *(f"{name}_{kind}" for name in _HISTOGRAMS for kind in ("bucket", "count")),
    "vllm:request_success_total",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
)


def _counters(names: tuple[str, ...] = _COUNTERS) -> Counter[str]:
    """Values of vLLM's metrics, by name and the label that tells samples of it apart."""
    told: Counter[str] = Counter()
    for metric in import_module("prometheus_client").REGISTRY.collect():
        for sample in metric.samples:
            if sample.name in names:
                label = sample.labels.get("le") or sample.labels.get("finished_reason") or ""
                told[f"{sample.name}{label and ' '}{label}"] += sample.value
    return told


def _longer_than(seconds: float, histogram: str, rise: Counter[str]) -> float:
    """How many new samples lie above the first bound that is at least `seconds`."""
    prefix = f"{histogram}_bucket "
    buckets = {float(name.removeprefix(prefix)): name for name in rise if name.startswith(prefix)}
    within = rise[buckets[min(bound for bound in buckets if bound >= seconds)]]
    return rise[f"{histogram}_count"] - within


async def test_the_storm_met_requests_in_every_state(storm: Outcome) -> None:
    assert len(storm.chats) == CHATS
    states = Counter(chat.receipts[0].state for chat in storm.chats if chat.receipts)
    assert {"admitting", "waiting", "running", "finished"} <= set(states)
    assert sum(life.preempted for life in storm.lives.values())
    met = {(chat.way, chat.stream, chat.choices > 1) for chat in storm.chats}
    assert len(met) == 5 * 2 * 2


async def test_every_abort_has_one_truth_and_it_is_the_engines(storm: Outcome) -> None:
    found = {chat.name: untruth(chat, parts_of(chat, storm.lives)) for chat in storm.chats}
    assert {name: fault for name, fault in found.items() if fault is not None} == {}


async def test_callers_hear_the_end_that_their_chat_had(storm: Outcome) -> None:
    for chat in storm.chats:
        stopped = any(receipt.accepted for receipt in chat.receipts)
        if chat.cancelled:
            continue
        if chat.status is not None:
            # One that vLLM registered in the moment of its abort got into line, or even further.
            assert (chat.status, stopped, chat.delivered) == (499, True, 0), chat
            assert chat.receipts[0].state in ("admitting", "waiting", "running"), chat
            continue
        assert len(chat.reasons) == chat.choices, chat
        assert set(chat.reasons.values()) <= {"abort", "length"}, chat
        assert ("abort" in chat.reasons.values()) == stopped, chat
        for index, reason in chat.reasons.items():
            if reason == "length":
                assert chat.tokens[index] == chat.max_tokens, chat


async def test_no_token_comes_after_the_receipt(storm: Outcome) -> None:
    looked_at = 0
    for chat in storm.chats:
        for receipt in chat.receipts:
            looked_at += receipt.accepted
            assert chat.delivered <= (receipt.tokens or 0), chat
    for life in storm.lives.values():
        if life.asked_in is not None:
            # Steps of it from before the abort alone.
            assert all(step <= life.asked_in for step in life.steps), life
    assert looked_at > CHATS / 4


async def test_what_was_aborted_while_it_waited_is_in_no_schedule(storm: Outcome) -> None:
    waited = [life for life in storm.lives.values() if life.stood == "WAITING"]
    assert len(waited) > CHATS / 20
    assert not any(life.steps or life.tokens for life in waited)
    events: dict[str, list[str]] = defaultdict(list)
    for _, kind, internal_id, _, _ in storm.transitions:
        events[internal_id].append(kind)
    assert set(events) == set(storm.lives)
    for internal_id, kinds in events.items():
        life = storm.lives[internal_id]
        assert kinds[-1] == "finished", internal_id
        assert kinds.count("finished") == life.ends == 1, internal_id
        assert ("scheduled" in kinds) == bool(life.steps), internal_id


async def test_nothing_is_left_in_frontend_ledger_and_engine(storm: Outcome) -> None:
    assert not any(storm.left_behind.values()), storm.left_behind
    depths = {name: storm.depths[name] for name in ("running", "waiting", "blocked", "kv_usage")}
    assert depths == {"running": 0, "waiting": 0, "blocked": 0, "kv_usage": 0.0}


async def test_vllms_own_statistics_count_what_happened_and_nothing_else(storm: Outcome) -> None:
    risen, lives = storm.counters, [*storm.lives.values()]
    begun = [life for life in lives if life.tokens]
    ended = [life for life in lives if life.status != "FINISHED_ABORTED"]
    assert {life.status for life in ended} == {"FINISHED_LENGTH_CAPPED"}
    heard_begin = sum(tokens > 0 for chat in storm.chats for tokens in chat.tokens.values())
    heard_end = sum(list(chat.reasons.values()).count("length") for chat in storm.chats)
    heard_tokens = sum(chat.delivered for chat in storm.chats)
    # A caller that left does not hear what vLLM's frontend counted last, nor does that frontend
    # count what the engine made last.
    more = storm.settling
    first = risen["vllm:time_to_first_token_seconds_count"]
    assert heard_begin + more <= first <= len(begun)
    success = risen["vllm:request_success_total length"]
    assert heard_end + more <= success <= len(ended)
    others = {n: v for n, v in risen.items() if n.startswith("vllm:request_success_total")}
    assert sum(others.values()) == success
    for name in _HISTOGRAMS[1:]:
        assert risen[f"{name}_count"] == success, name
    tokens = risen["vllm:generation_tokens_total"]
    assert heard_tokens + more <= tokens <= sum(life.tokens for life in lives)
    assert risen["vllm:prompt_tokens_total"] <= sum(life.prompt_tokens for life in begun)
    # An abort that vLLM took for a first token would have a prefill as long as the host is up.
    assert not any(storm.over_limit.values()), storm.over_limit
