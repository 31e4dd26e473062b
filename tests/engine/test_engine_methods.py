"""The methods and the watch in a real engine's process.

Two run at a time; the rest waits. The KV cache is too small for two long ones: one is preempted.
"""

import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from nnrp_sched_patches.channel import EngineRefused, EngineSilent, call_engine
from nnrp_sched_patches.engine_hooks import ENGINE_HOOKS
from nnrp_sched_patches.hello import hello_receipts
from nnrp_sched_patches.launch import LaunchOptions, Serving, launch
from tests.support.engine_requests import WATCHER, requests_to

pytestmark = pytest.mark.anyio

_SMALL = (
    *("--scheduling-policy", "priority", "--max-num-seqs", "2", "--max-model-len", "96"),
    *("--block-size", "32", "--num-gpu-blocks-override", "5", "--no-enable-prefix-caching"),
)
_LONG = 80
"""Tokens of a request that fills most of the cache by itself."""


@pytest.fixture(scope="module")
async def llm(anyio_backend: str) -> AsyncIterator[Any]:
    """A patched engine that schedules by priority."""
    async with launch(LaunchOptions(patch=True, vllm_arguments=_SMALL)) as running:
        yield running.engine.async_llm


async def test_every_hook_of_the_tables_is_in_the_engines_process(llm: Any) -> None:
    with anyio.fail_after(120):
        _, engine = await hello_receipts(llm, 20)
    assert {hook.name for hook in ENGINE_HOOKS} <= set(engine.hooks)
    assert engine.policy == "priority"


async def test_states_and_places_are_told_while_requests_run_and_wait(llm: Any) -> None:
    async with requests_to(llm) as requests:
        await requests.start("a", "b", tokens=_LONG, until="scheduled")
        await requests.start("c", "d", "e", tokens=_LONG)
        told = await requests.state("a", "b", "c", "d", "e")
        assert [one["state"] for one in told.values()] == [*2 * ["running"], *3 * ["waiting"]]
        assert [one["position"] for one in told.values()] == [None, None, 0, 1, 2]
        assert told["a"]["scheduled_ns"] >= told["a"]["queued_ns"] > 0
        assert (told["c"]["scheduled_ns"], told["c"]["tokens"]) == (None, 0)
        assert told["a"]["prompt_tokens"] > 0
        depths = await requests.call("queue")
        assert (depths["running"], depths["waiting"], depths["policy"]) == (2, 3, "priority")
        assert 0 < depths["kv_usage"] <= 1
        listing = await requests.call("state", limit=4)
        assert list(listing["requests"]) == [requests.ids[name] for name in "abcd"]
        assert listing["total"] == 5


async def test_a_request_aborted_while_it_waits_is_never_scheduled(llm: Any) -> None:
    async with requests_to(llm) as requests:
        await requests.start("a", "b", tokens=_LONG, until="scheduled")
        await requests.start("c", "d", tokens=3)
        told = (await requests.abort("c"))["c"]
        assert (told["state"], told["accepted"], told["tokens"]) == ("waiting", True, 0)
        await requests.abort("a")
        await requests.until(lambda: "finished" in requests.kinds("d"))
        assert requests.kinds("c") == ["queued", "finished"]
        assert requests.extra("finished", "c") == {"status": "FINISHED_ABORTED", "tokens": 0}
        again = (await requests.abort("c"))["c"]
        assert (again["state"], again["accepted"]) == ("unknown", False)


async def test_a_request_aborted_while_it_runs_ends_with_the_tokens_that_were_told(
    llm: Any,
) -> None:
    async with requests_to(llm) as requests:
        await requests.start("a", tokens=_LONG, until="scheduled")
        while not (await requests.state("a"))["a"]["tokens"]:
            pass
        told = (await requests.abort("a", "never"))["a"]
        assert (told["state"], told["accepted"], told["engine_status"]) == (
            *("running", True),
            "RUNNING",
        )
        await requests.until(lambda: "finished" in requests.kinds("a"))
        assert requests.extra("finished", "a")["tokens"] == told["tokens"]
    (completion,) = requests.outputs["a"].outputs
    assert completion.finish_reason == "abort"
    assert len(completion.token_ids) == told["tokens"]


async def test_another_frontends_abort_ends_the_request_for_its_owner(llm: Any) -> None:
    async with requests_to(llm) as requests:
        await requests.start("a", "b", tokens=_LONG, until="scheduled")
        await requests.start("c", tokens=_LONG)
        told = await requests.abort("a", "c", client=llm.engine_core.client_index + 1)
        assert [one["state"] for one in told.values()] == ["running", "waiting"]
        assert {one["client"] for one in told.values()} == {llm.engine_core.client_index}
        # Nobody finalises here: the engine's own output must do it.
        await requests.start("d", tokens=2, until="finished")
        assert set(llm.output_processor.external_req_ids) == {"b"}
    assert requests.outputs["a"].outputs[0].finish_reason == "abort"


async def test_lives_are_told_exactly_and_at_the_engines_own_times(llm: Any) -> None:
    names = ["a", "b", "c", "d", "e"]
    async with requests_to(llm) as requests:
        await requests.start(*names, tokens=4)
        await requests.until(lambda: len(requests.order("finished")) == len(names))
        await requests.call("queue")
    for name in names:
        assert requests.kinds(name) == ["queued", "scheduled", "finished"]
        assert requests.extra("finished", name) == {"status": "FINISHED_LENGTH_CAPPED", "tokens": 4}
        stats = requests.outputs[name].metrics
        times = {kind: at for kind, of, at, _ in requests.events if of == name}
        assert abs(times["queued"] / 1e9 - stats.queued_ts) < 0.01
        assert abs(times["scheduled"] / 1e9 - stats.scheduled_ts) < 0.01


async def test_preemptions_are_told_each_with_its_resumption(llm: Any) -> None:
    async with requests_to(llm) as requests:
        await requests.start("a", "b", tokens=_LONG, until="scheduled")
        await requests.until(lambda: "preempted" in requests.kinds("b"))
        told = (await requests.state("b"))["b"]
        assert (told["state"], told["position"], told["preemptions"]) == ("preempted", 0, 1)
        await requests.until(lambda: len(requests.order("finished")) == 2)
        assert requests.kinds("a") == ["queued", "scheduled", "finished"]
        assert requests.kinds("b") == [
            *("queued", "scheduled", "preempted", "resumed", "finished"),
        ]
        assert requests.extra("finished", "b")["tokens"] == _LONG


async def test_a_preempted_request_is_aborted_and_not_resumed(llm: Any) -> None:
    async with requests_to(llm) as requests:
        await requests.start("a", "b", tokens=_LONG, until="scheduled")
        await requests.until(lambda: "preempted" in requests.kinds("b"))
        told = (await requests.abort("b"))["b"]
        assert (told["state"], told["accepted"]) == ("preempted", True)
        await requests.until(lambda: "finished" in requests.kinds("a"))
        assert requests.kinds("b") == ["queued", "scheduled", "preempted", "finished"]
    assert len(requests.outputs["b"].outputs[0].token_ids) == told["tokens"] > 0


async def test_new_priorities_change_the_order_in_which_waiting_requests_run(llm: Any) -> None:
    async with requests_to(llm) as requests:
        await requests.start("a", "b", tokens=_LONG, until="scheduled")
        for number, name in enumerate(["c", "d", "e", "f"]):
            await requests.start(name, tokens=2, priority=18 + number)
        ids = requests.ids
        reply = await requests.call(
            "set_priority", ids={ids["f"]: 1, ids["c"]: 99, ids["a"]: 5, "never": 5}
        )
        assert reply["requests"] == {
            **{ids["f"]: "applied", ids["c"]: "applied"},
            **{ids["a"]: "not_waiting", "never": "unknown"},
        }
        told = await requests.state("c", "d", "e", "f")
        assert {name: one["position"] for name, one in told.items()} == {
            **{"f": 0, "d": 1, "e": 2, "c": 3}
        }
        await requests.abort("a")
        await requests.until(lambda: len(requests.order("finished")) == 5)
        assert requests.order("scheduled") == ["a", "b", "f", "d", "e", "c"]


async def test_under_fcfs_a_new_priority_is_refused_by_name(serving: Serving) -> None:
    async with requests_to(serving.engine.async_llm) as requests:
        await requests.start("a", until="scheduled")
        reply = await requests.call("set_priority", ids={requests.ids["a"]: 1, "never": 1})
    assert reply["policy"] == "fcfs"
    assert reply["requests"] == {requests.ids["a"]: "policy_fcfs", "never": "unknown"}


async def _poll(llm: Any, since: int, wait_s: float, *, patience_s: float = 30) -> Any:
    payload = {"since": since, "wait_s": wait_s, "client": WATCHER + 1}
    return await call_engine(llm, "nnrp_poll", payload, wait_s=patience_s)


async def test_a_poll_of_an_idle_engine_ends_in_time_or_with_the_next_request(llm: Any) -> None:
    async with requests_to(llm) as requests:
        seq = (await requests.call("queue"))["seq"]
        began = time.monotonic()
        assert await _poll(llm, seq, 0.3) == {"seq": seq, "events": [], "dropped": 0}
        assert 0.29 < time.monotonic() - began < 5
        batches: list[Any] = []

        async def poll() -> None:
            batches.append(await _poll(llm, seq, 30))

        requests.tasks.start_soon(poll)
        await requests.start("a", tokens=2, until="finished")
        assert batches[0]["events"][0][:2] == [seq + 1, "queued"]


async def test_a_poll_of_a_busy_engine_without_news_ends_in_time(llm: Any) -> None:
    async with requests_to(llm) as requests:
        await requests.start("a", tokens=_LONG, until="scheduled")
        seq = (await requests.call("queue"))["seq"]
        before = (await requests.state("a"))["a"]["tokens"]
        assert (await _poll(llm, seq, 0.3))["events"] == []
        assert (await requests.state("a"))["a"]["tokens"] > before


async def test_a_poll_that_is_given_up_loses_nothing(llm: Any) -> None:
    async with requests_to(llm) as requests:
        seq = (await requests.call("queue"))["seq"]
        with pytest.raises(EngineSilent):
            await _poll(llm, seq, 5, patience_s=0.05)
        await requests.start("a", tokens=2, until="finished")
        batch = await _poll(llm, seq, 0)
        assert [event[1] for event in batch["events"]] == ["queued", "scheduled", "finished"]
        # The answer that nobody awaited is through as well: vLLM keeps no call open for it.
        await requests.call("queue")
        assert not any(call.cancelled() for call in llm.engine_core.utility_results.values())


async def test_a_payload_that_does_not_fit_harms_nobody(llm: Any) -> None:
    async with requests_to(llm) as requests:
        misfits: dict[str, Any] = {
            "abort": {"ids": 5},
            "state": {"limit": -1},
            "poll": {"since": ""},
        }
        for method, payload in misfits.items():
            with pytest.raises(EngineRefused, match="bad payload"):
                await requests.call(method, **payload)
        await requests.start("a", tokens=2, until="finished")
