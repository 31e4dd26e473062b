"""A deterministic engine without a model, for conformance, tests and trying things out.

It answers as `engine.script` works out, in the chunks vLLM 0.32 would send. The models are those
of the NNRP suite's recipes: `example-model`, `backend-error` (fails with status 500) and
`reference-model` (its answer is a single delta).
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from itertools import zip_longest
from typing import Final, Literal

import anyio
import anyio.lowlevel

from nnrp_sched.engine.port import AbortBy
from nnrp_sched.engine.records import (
    AbortReceipt,
    ChatBody,
    ChatCall,
    EngineDescription,
    QueueSnapshot,
    Reprioritized,
)
from nnrp_sched.engine.script import Plan, plan
from nnrp_sched.engine.scripted_queue import Clock, LiveCall, ScriptedQueue
from nnrp_sched.errors import BackendError
from nnrp_sched.profile import ChatAssembly
from nnrp_sched.profile.json_values import is_object

MODELS: Final = ("example-model", "backend-error", "reference-model")
CREATED: Final = 1_700_000_000
"""`created` of every answer: the same request gives the same bytes."""

Sleep = Callable[[float], Awaitable[None]]
Policy = Literal["priority", "fcfs"]


def _milliseconds() -> float:
    return time.monotonic_ns() / 1e6


class ScriptedEngine:
    """An `Engine` that plays scripts. Nothing of a call is kept once it has ended."""

    def __init__(
        self,
        *,
        models: Iterable[str] = MODELS,
        max_model_len: int | None = None,
        sleep: Sleep = anyio.sleep,
        slots: int | None = None,
        policy: Policy = "priority",
        clock: Clock = _milliseconds,
    ) -> None:
        """Serve these models, which take no limit of an answer above `max_model_len`.

        `sleep` takes seconds and makes every delay of the scripts. `slots` calls run at once (None:
        all of them), the others wait in the order of `policy`. `clock` gives the times of
        snapshots.
        """
        self._description = EngineDescription(
            "scripted",
            tuple(models),
            tool_calls=True,
            max_model_len=max_model_len,
            priority_policy=policy,
            live_queue=True,
        )
        self._sleep = sleep
        self._clock = clock
        self._queue = ScriptedQueue(slots, policy, clock)

    @property
    def description(self) -> EngineDescription:
        """What this engine serves."""
        return self._description

    async def complete(self, call: ChatCall) -> ChatBody:
        """Serve a call whole; an aborted one returns what there was, as vLLM does."""
        assembly = ChatAssembly()
        async with aclosing(self._chunks(call, include_usage=True)) as chunks:
            async for chunk in chunks:
                assembly.add(chunk)
        return assembly.body()

    async def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """Serve a call in chunks; a last one has the usage when the body asks for it."""
        options = call.body.get("stream_options")
        include_usage = is_object(options) and options.get("include_usage") is True
        async with aclosing(self._chunks(call, include_usage=include_usage)) as chunks:
            async for chunk in chunks:
                yield chunk

    def tokens(self, request_id: str) -> int | None:
        """Pieces of content that came out so far."""
        return self._queue.tokens(request_id)

    async def abort(self, request_id: str) -> AbortReceipt:
        """End a call; it then finishes with what it has, finish_reason `abort`."""
        return self._queue.abort(request_id)

    async def abort_operations(self, ids: Sequence[str], *, by: AbortBy) -> list[AbortReceipt]:
        """End calls by what users know of them."""
        return self._queue.abort_operations(tuple(ids), by)

    async def queue(self) -> QueueSnapshot:
        """Every live call: the running ones as they began, then the waiting ones by their turn."""
        return self._queue.snapshot()

    async def reprioritize(self, request_id: str, priority: int) -> Reprioritized:
        """Sort a waiting call in anew."""
        return self._queue.reprioritize(request_id, priority)

    async def _chunks(
        self, call: ChatCall, *, include_usage: bool
    ) -> AsyncGenerator[ChatBody, None]:
        self._check_model(call.body.get("model"))
        work = plan(call.body)
        self._check_length(work.limit)
        if work.script.fail_status is not None and work.script.fail_after is None:
            raise _scripted_failure(work)
        live = self._queue.enter(call)
        try:
            await live.go.wait()
            async with aclosing(self._choices(work, live)) as choices:
                async for choice in choices:
                    yield _chunk(call, [choice])
            if include_usage:
                yield _chunk(call, [], usage=_usage(work, live))
        finally:
            self._queue.leave(live)

    async def _choices(self, work: Plan, live: LiveCall) -> AsyncGenerator[ChatBody, None]:
        """Every chunk's choice: the roles, the content in turns, the finish reasons."""
        indexes = range(work.choices)
        for index in indexes:
            yield _choice(index, {"role": "assistant", "content": ""})
        turns = zip_longest(*(work.deltas(index) for index in indexes))
        for index, delta in (pair for turn in turns for pair in enumerate(turn)):
            if delta is None:
                continue
            if live.tokens == work.script.fail_after:
                raise _scripted_failure(work)
            await self._pause(work.script.delay_ms / 1000, live)
            if live.aborted.is_set():
                break
            live.count_token(self._clock())
            yield _choice(index, delta, token_ids=None)
        if live.tokens == work.script.fail_after and not live.aborted.is_set():
            raise _scripted_failure(work)
        if work.script.hold:
            await live.aborted.wait()
        for index in indexes:
            reason = "abort" if live.aborted.is_set() else work.finish_reason(index)
            yield _choice(index, {"content": ""}, finish_reason=reason, stop_reason=None)

    async def _pause(self, seconds: float, live: LiveCall) -> None:
        """Let the others run; with a delay, also wait for it or for the abort."""
        if not seconds:
            await anyio.lowlevel.checkpoint()
            return

        async def wake() -> None:
            await live.aborted.wait()
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wake)
            await self._sleep(seconds)
            tasks.cancel_scope.cancel()

    def _check_model(self, model: object) -> None:
        if model not in self._description.models:
            raise BackendError(
                f"The model `{model}` does not exist.",
                status=404,
                error_type="NotFoundError",
                parameter="model",
            )
        if model == "backend-error":
            raise BackendError(
                "The scripted backend failed.", status=500, error_type="InternalServerError"
            )

    def _check_length(self, limit: int | None) -> None:
        most = self._description.max_model_len
        if most is not None and limit is not None and limit > most:
            raise BackendError(
                f"max_tokens={limit} cannot be greater than max_model_len={most}.",
                status=400,
                error_type="BadRequestError",
                parameter="max_tokens",
            )


def _choice(index: int, delta: ChatBody, **members: object) -> ChatBody:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **members}


def _chunk(call: ChatCall, choices: list[ChatBody], **members: object) -> ChatBody:
    return {
        "id": f"chatcmpl-{call.request_id}",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": call.body["model"],
        "choices": choices,
        **members,
    }


def _usage(work: Plan, live: LiveCall) -> ChatBody:
    return {
        "prompt_tokens": work.prompt_tokens,
        "total_tokens": work.prompt_tokens + live.tokens,
        "completion_tokens": live.tokens,
    }


def _scripted_failure(work: Plan) -> BackendError:
    status = work.script.fail_status or 500
    return BackendError(f"Scripted failure with status {status}.", status=status)
