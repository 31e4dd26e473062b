"""Every way out of a real engine ends in the scheduler's receipt, whoever gave up.

Two run at a time, a long prompt takes many steps, and the KV cache is too small for two long ones.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.port import ChatCall
from nnrp_sched.errors import BackendError
from nnrp_sched.observe.record import AbortObservation, OperationRecord
from nnrp_sched_patches.channel import call_engine
from nnrp_sched_patches.launch import LaunchOptions, Serving, launch
from nnrp_sched_patches.ledger_records import Entry
from tests.support.engine_requests import WATCHER
from tests.support.http_client import request_open
from tests.support.serving import scripted_server
from tests.support.vllm_chats import MODEL, body
from tests.support.vllm_counters import counters

pytestmark = pytest.mark.anyio

BLOCK = 32
BLOCKS = 24
"""Of the KV cache, one of them vLLM's own: the longest request leaves room for one more block."""
LONGEST = 704
"""Tokens of a prompt and its answer: 22 blocks."""
ARGUMENTS = (
    *("--max-num-seqs", "2", "--max-num-batched-tokens", "64"),
    *("--max-model-len", f"{LONGEST}"),
    *("--block-size", f"{BLOCK}", "--num-gpu-blocks-override", f"{BLOCKS}"),
    "--no-enable-prefix-caching",
)
PROMPTS = {"short": [1, 2, 3], "long": [5] * 600, "half": [7] * 340}


@pytest.fixture(scope="module")
async def narrow(anyio_backend: str) -> AsyncIterator[Serving]:
    """A patched vLLM with HTTP."""
    del anyio_backend
    options = LaunchOptions(http="127.0.0.1:0", patch=True, vllm_arguments=ARGUMENTS)
    async with launch(options) as running:
        yield running


class Scene:
    """One test's requests on the engine, and everything that was told of them."""

    def __init__(self, serving: Serving, tasks: TaskGroup, since: int) -> None:
        self.serving = serving
        self.llm = serving.engine.async_llm
        self.tasks = tasks
        self.records: list[OperationRecord] = []
        self._since = since

    async def occupy(self) -> None:
        """Fill both places."""
        for name in ("b0", "b1"):
            self.tasks.start_soon(self._serve, name)
        await self.reach(b0="running", b1="running")
        while not all(self.entry(name).tokens for name in ("b0", "b1")):
            await checkpoint()

    async def _serve(self, name: str) -> None:
        chat = body("Count.", max_tokens=600, ignore_eos=True)
        answer = await self.serving.engine.complete(ChatCall(name, chat))
        assert answer["choices"][0]["finish_reason"] == "abort"

    async def reach(self, **states: str) -> None:
        """Come back when requests stand where they should."""
        while True:
            shown = {one.id: one.state for one in (await self.serving.engine.queue()).operations}
            if states.items() <= shown.items():
                return
            await checkpoint()

    def entry(self, name: str) -> Entry:
        """A request of the ledger."""
        found = self.serving.engine.ledger.find(name)
        assert found is not None
        return found

    async def record_of(self, name: str) -> OperationRecord:
        """The record of a request, once it is made."""
        while True:
            for record in self.records:
                if record.id == name:
                    return record
            await checkpoint()

    async def ended_as_told(self, name: str, state: str) -> AbortObservation:
        """See that an aborted request is gone, with a receipt that everything else agrees with."""
        record = await self.record_of(name)
        entry = self.entry(name)
        receipt = entry.receipt
        assert receipt is not None
        assert (receipt.state, receipt.accepted, receipt.authoritative) == (state, True, True)
        assert record.abort is not None
        assert (record.outcome, record.abort.receipt) == ("cancelled", receipt)
        assert (record.output_tokens, entry.tokens) == (receipt.tokens, receipt.tokens)
        told = await self._transitions()
        ends = 0
        for internal_id in entry.parts:
            kinds = [kind for kind, of, _ in told if of == internal_id]
            (end,) = [extra for kind, of, extra in told if (kind, of) == ("finished", internal_id)]
            assert end["status"] == "FINISHED_ABORTED"
            ends += end["tokens"]
            # Nothing happens to it after its end, and what waited has never run.
            assert kinds[-1] == "finished"
            assert state != "waiting" or "scheduled" not in kinds
        assert ends == receipt.tokens
        left = await call_engine(self.llm, "nnrp_state", {"ids": list(entry.parts)}, wait_s=20)
        assert {one["state"] for one in left["requests"].values()} == {"unknown"}
        (again,) = await self.serving.engine.abort_operations([name], by="id")
        assert again == receipt
        return record.abort

    async def _transitions(self) -> list[tuple[str, str, Any]]:
        """What happened in the scheduler since this began: kind, internal id, particulars."""
        wanted = {"since": self._since, "max": 4096, "client": WATCHER}
        batch = await call_engine(self.llm, "nnrp_poll", wanted, wait_s=20)
        assert batch["dropped"] == 0
        return [(kind, of, extra) for _, kind, of, _, extra in batch["events"]]

    async def clean(self) -> None:
        """See that nothing is left, after stopping what fills the places."""
        await self.serving.engine.abort_operations(["b0", "b1"], by="id")
        while self.serving.engine.calls_in_flight:
            await checkpoint()
        processor = self.llm.output_processor
        assert (processor.request_states, processor.parent_requests) == ({}, {})
        assert dict(processor.external_req_ids) == {}
        assert self.serving.engine.ledger.live == []
        depths = await call_engine(self.llm, "nnrp_queue", {}, wait_s=20)
        assert (depths["running"], depths["waiting"], depths["blocked"]) == (0, 0, 0)
        assert depths["kv_usage"] == 0


@asynccontextmanager
async def scene_on(serving: Serving) -> AsyncGenerator[Scene, None]:
    """An idle engine, that is idle again afterwards."""
    with anyio.fail_after(120):
        depths = await call_engine(serving.engine.async_llm, "nnrp_queue", {}, wait_s=30)
        async with anyio.create_task_group() as tasks:
            scene = Scene(serving, tasks, depths["seq"])
            serving.observe_http(scene.records.append)
            yield scene
            await scene.clean()
            serving.engine.ledger.on_end = None


ATTEMPTS = 10
"""A state that passes by itself may have passed when the abort comes: it is tried so often."""
_numbers = itertools.count()


def completion(prompt: str, **members: Any) -> dict[str, Any]:
    """A completion that goes on for as long as it is let."""
    answer = {"max_tokens": 90, "ignore_eos": True, "temperature": 0}
    return {"model": MODEL, "prompt": PROMPTS[prompt], **answer, **members}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("moment", ["waiting", "prefill", "decode"])
async def test_an_http_client_that_leaves_has_its_request_taken_out_with_a_receipt(
    narrow: Serving, moment: str, stream: bool, n: int
) -> None:
    async with scene_on(narrow) as scene:
        request_id = f"left-{next(_numbers)}"
        name = f"cmpl-{request_id}-0"
        state = "waiting" if moment == "waiting" else "running"
        if moment == "waiting":
            await scene.occupy()
        prompt = {"prefill": "long" if n == 1 else "half"}.get(moment, "short")
        # Without a seed: vLLM's CPU worker dies of one in the middle of a prompt.
        members = {"n": n, "temperature": 1.0} if n > 1 else {}
        asked = completion(prompt, stream=stream, **members)
        address = scene.serving.http
        assert address is not None
        async with request_open(address, "/v1/completions", asked, request_id):
            await scene.reach(**{name: state})
            entry = scene.entry(name)
            if moment == "decode":
                while any(not part.tokens for part in entry.parts.values()):
                    await checkpoint()
            before = counters()
        abort = await scene.ended_as_told(name, state)
        assert abort.reason == "client_gone"
        # Of several choices the first may have tokens while the next one's prompt is computed.
        if (moment, n) != ("prefill", 2):
            assert (entry.tokens > 0) == (moment == "decode")
        assert len(entry.parts) == n
        assert counters() == before


async def test_a_chat_client_that_leaves_gets_the_same(narrow: Serving) -> None:
    async with scene_on(narrow) as scene:
        address = scene.serving.http
        assert address is not None
        asked = body("Count.", max_tokens=600, ignore_eos=True, stream=True)
        async with request_open(address, "/v1/chat/completions", asked, "chat") as stream:
            await scene.reach(**{"chatcmpl-chat": "running"})
            while b"content" not in await stream.receive():
                pass
        abort = await scene.ended_as_told("chatcmpl-chat", "running")
        assert abort.reason == "client_gone"


@pytest.mark.parametrize("by", ["cancel", "scope", "close"])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_caller_of_generate_that_stops_has_its_request_taken_out_with_a_receipt(
    narrow: Serving, by: str, n: int
) -> None:
    async with scene_on(narrow) as scene:
        params = import_module("vllm").SamplingParams
        name = f"direct-{next(_numbers)}"
        sampling = params(max_tokens=90, ignore_eos=True, temperature=1.0, n=n)

        async def consume() -> None:
            stream = scene.llm.generate({"prompt_token_ids": PROMPTS["short"]}, sampling, name)
            async for _ in stream:
                if by == "close" and len(scene.entry(name).parts) == n:
                    await stream.aclose()

        if by == "scope":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consume)
                await scene.reach(**{name: "running"})
                tasks.cancel_scope.cancel()
        else:
            task = asyncio.create_task(consume())
            if by == "cancel":
                await scene.reach(**{name: "running"})
                task.cancel()
            await asyncio.wait({task})
        abort = await scene.ended_as_told(name, "running")
        assert abort.reason == "client_gone"


@pytest.mark.parametrize("waiting", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_operation_that_outlives_its_timeout_ends_with_a_receipt(
    narrow: Serving, stream: bool, waiting: bool
) -> None:
    state = "waiting" if waiting else "running"
    # A machine that is busy with other things may take longer to bring it there.
    for timeout_ms in (600, 2_400, 9_600):
        if await _timed_out_in_the_engine(narrow, stream, timeout_ms, state):
            return
    pytest.fail("each time the timeout came before the engine had the operation")


async def _timed_out_in_the_engine(
    narrow: Serving, stream: bool, timeout_ms: int, state: str
) -> bool:
    """Whether an operation's timeout met it in the engine, where it stands at `state`."""
    async with scene_on(narrow) as scene:
        if state == "waiting":
            await scene.occupy()
        records: list[OperationRecord] = []
        chat = body("Count.", max_tokens=600, ignore_eos=True)
        async with (
            scripted_server(scene.serving.engine, observers=[records.append]) as served,
            served.connect() as connection,
            connection.session() as session,
        ):
            outcome = await session.chat(chat, stream=stream, timeout_ms=timeout_ms).result()
            while not records:
                await checkpoint()
        assert outcome.error is not None
        assert outcome.error.code == "request_timeout"
        (record,) = records
        assert record.abort is not None
        assert record.abort.reason == "timeout"
        receipt = record.abort.receipt
        if receipt is None or receipt.state == "admitting":
            return False
        assert (receipt.state, receipt.accepted, receipt.authoritative) == (state, True, True)
        assert scene.entry(record.id).receipt is not None
        return True


async def test_a_preempted_request_says_so_in_its_receipt(narrow: Serving) -> None:
    for attempt in range(ATTEMPTS):
        if await _aborted_once_preempted(narrow, attempt) == "preempted":
            return
    pytest.fail("each time it ran again before the abort came")


async def _aborted_once_preempted(narrow: Serving, attempt: int) -> str:
    """The state of which the receipt tells, of a request seen preempted a moment before.

    It needs two blocks, and while the first holds 22 it cannot even begin again.
    """
    first, second = f"first-{attempt}", f"second-{attempt}"
    async with scene_on(narrow) as scene:
        params = import_module("vllm").SamplingParams
        sampling = params(max_tokens=LONGEST - 600, ignore_eos=True, temperature=0.0)
        ends: dict[str, Any] = {}

        async def consume(name: str, prompt: str) -> None:
            tokens = {"prompt_token_ids": PROMPTS[prompt]}
            async for output in scene.llm.generate(tokens, sampling, name):
                ends[name] = output.outputs[0]

        scene.tasks.start_soon(consume, first, "long")
        await scene.reach(**{first: "running"})
        # So late that the second one has two blocks, not three, when the first one takes its last.
        while scene.entry(first).tokens < 20:
            await checkpoint()
        scene.tasks.start_soon(consume, second, "short")
        await scene.reach(**{second: "preempted"})
        before = counters()
        (receipt,) = await scene.serving.engine.abort_operations([second], by="id")
        assert counters() == before
        abort = await scene.ended_as_told(second, receipt.state)
        assert (abort.reason, abort.receipt) == ("requested", receipt)
        assert (receipt.tokens or 0) > 0
        (other,) = await scene.serving.engine.abort_operations([first], by="id")
    # Whoever consumed them is through.
    assert ends[first].finish_reason == ("abort" if other.accepted else "length")
    assert ends[second].finish_reason == "abort"
    assert len(ends[second].token_ids) == receipt.tokens
    return receipt.state


async def test_a_request_blocked_for_its_next_input_says_so_in_its_receipt(narrow: Serving) -> None:
    async with scene_on(narrow) as scene:
        params = import_module("vllm").SamplingParams
        kinds = import_module("vllm.sampling_params").RequestOutputKind
        piece = import_module("vllm.engine.protocol").StreamingInput
        sampling = params(max_tokens=3, ignore_eos=True, temperature=0.0, output_kind=kinds.DELTA)
        ended = anyio.Event()

        async def pieces() -> AsyncGenerator[Any, None]:
            yield piece(prompt={"prompt_token_ids": PROMPTS["short"]})
            await anyio.sleep_forever()

        async def consume() -> None:
            async for _ in scene.llm.generate(pieces(), sampling, "pieces"):
                pass
            ended.set()

        scene.tasks.start_soon(consume)
        await scene.reach(pieces="blocked")
        before = counters()
        (receipt,) = await scene.serving.engine.abort_operations(["pieces"], by="id")
        assert (receipt.state, receipt.accepted, receipt.authoritative) == ("blocked", True, True)
        assert counters() == before
        await ended.wait()
        record = await scene.record_of("pieces")
        assert record.abort is not None
        assert record.abort.receipt == receipt


async def test_a_request_blocked_by_its_grammar_says_so_in_its_receipt(narrow: Serving) -> None:
    for attempt in range(ATTEMPTS):
        if await _aborted_once_blocked(narrow, f"grammar-{attempt}") == "blocked":
            return
    pytest.fail("each time its grammar was there before the abort came")


async def _aborted_once_blocked(narrow: Serving, name: str) -> str:
    """The state of which the receipt tells, of a request seen blocked a moment before."""
    async with scene_on(narrow) as scene:
        # Each of the many fields adds to a grammar that takes the engine seconds to compile, once.
        fields = {f"{name}_{number}": {"type": "string", "maxLength": 400} for number in range(90)}
        schema = {"type": "object", "properties": fields, "required": list(fields)}
        asked = body(
            max_tokens=600,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "wide", "schema": schema},
            },
        )
        ends: list[Any] = []

        async def serve() -> None:
            try:
                ends.append(await scene.serving.engine.complete(ChatCall(name, asked)))
            except BackendError as error:
                ends.append(error)

        scene.tasks.start_soon(serve)
        await scene.reach(**{name: "blocked"})
        (receipt,) = await scene.serving.engine.abort_operations([name], by="id")
        assert (receipt.accepted, receipt.authoritative) == (True, True)
        while not ends:
            await checkpoint()
        assert ends[0]["choices"][0]["finish_reason"] == "abort"
        assert receipt.state != "blocked" or receipt.tokens == 0
    return receipt.state
