"""`Engine` over vLLM's own chat serving, called in this process (hooks.md 4, hooks-verified.md 7).

vLLM parses the body, applies the template, parses tools and reasoning and words the chunks; nothing
of that is done again here. The only keys of a body that change are `request_id` and `priority`.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import msgspec

from nnrp_sched.engine.port import AbortBy, AbortReceipt, ChatBody, ChatCall, EngineDescription
from nnrp_sched.engine.records import QueueSnapshot, Reprioritized
from nnrp_sched.errors import BackendError
from nnrp_sched_patches.backend_errors import (
    from_error_object,
    from_exception,
    from_validation_error,
)
from nnrp_sched_patches.choice_ends import ChoiceEnds
from nnrp_sched_patches.control import Control
from nnrp_sched_patches.frontend import ledger_of
from nnrp_sched_patches.ledger import Ledger
from nnrp_sched_patches.live_calls import LiveCall, LiveCalls, registration
from nnrp_sched_patches.origin import origin

_LOGGER = logging.getLogger(__name__)

_SSE_PREFIX = "data:"
_SSE_END = "[DONE]"


class VllmEngine:
    """Serves chats through the `OpenAIServingChat` of an app state that `init_app_state` filled."""

    def __init__(
        self,
        engine: Any,
        chat: Any,
        request_class: Any,
        description: EngineDescription,
        control: Control | None = None,
    ) -> None:
        """`engine` is the AsyncLLM, `chat` vLLM's OpenAIServingChat over it.

        `request_class` is vLLM's ChatCompletionRequest; `control` there is where vLLM is patched.
        """
        self._engine = engine
        self._chat = chat
        self._request_class = request_class
        self._description = description
        self._control = control
        self._calls = LiveCalls(None if control is None else control.ledger)

    @property
    def description(self) -> EngineDescription:
        """What this engine serves; constant while it runs."""
        return self._description

    @property
    def async_llm(self) -> Any:
        """vLLM's engine client, for the hello and the control plane."""
        return self._engine

    @property
    def ledger(self) -> Ledger:
        """Every request of this vLLM's frontend; fed by the patches, and empty without them."""
        return ledger_of(self._engine.output_processor)

    @property
    def calls_in_flight(self) -> int:
        """How many calls have not ended."""
        return len(self._calls)

    async def complete(self, call: ChatCall) -> ChatBody:
        """Serve a call whose body does not stream; returns a chat.completion.

        Raises BackendError. The answer to a call aborted while it ran is what was produced until
        then, with the finish reason `abort`.
        """
        live = self._calls.open(call)
        try:
            answer: Any = None
            with live.admitted():
                answer = await self._create(call, live)
            if not hasattr(answer, "model_dump_json"):
                await answer.aclose()
                raise _not_a_boolean()
            # The bytes that vLLM's HTTP server would send, without the detour over its dict.
            body: ChatBody = msgspec.json.decode(answer.model_dump_json())
            return body
        finally:
            await self._end(live)

    async def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        """Serve a streaming call; yields chat.completion.chunk objects in order.

        The choices of a call aborted while it ran end with the finish reason `abort`.
        Raises BackendError, by the first step of the iteration when vLLM refuses the body.
        """
        live = self._calls.open(call)
        events: Any = None
        try:
            # A cancel scope must not be open across a yield, so the part before the first chunk
            # stands apart from the loop.
            event: str | None = None
            with live.admitted():
                events = await self._create(call, live)
                if hasattr(events, "model_dump_json"):
                    raise _not_a_boolean()
                with origin(live.origin):
                    event = await self._next(events)
            live.answering = True
            ends = ChoiceEnds()
            while event is not None:
                chunk = parse_event(event)
                if chunk is None:
                    missing = ends.missing(call.body) if live.aborted else None
                    if missing is not None:
                        yield missing
                    return
                ends.note(chunk)
                yield chunk
                event = await self._next(events)
            raise BackendError("vLLM's stream ended without its end mark", status=500)
        finally:
            await self._end(live, events)

    def tokens(self, request_id: str) -> int | None:
        """Output tokens so far; by vLLM's frontend, which is behind the engine by a step or so."""
        counts = [live.tokens(self._engine) for live in self._calls.of(request_id)]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    async def abort(self, request_id: str) -> AbortReceipt:
        """Stop every call in flight with that id; the receipt is that of the last one.

        Over a patched vLLM the scheduler's own word. Else over vLLM's public interface and never
        authoritative, because the engine takes an abort without an answer: `state` is then
        `admitting` while vLLM's frontend does not have the request yet, `running` when tokens came
        from it, and else `unknown`, as waiting and prefilling look alike from here.
        """
        if self._control is not None:
            ended = self._control.ledger.find(request_id)
            entries = [live.entry for live in self._calls.of(request_id) if live.entry is not None]
            receipts = await self._control.abort(entries or ([ended] if ended else []))
            if receipts:
                return msgspec.structs.replace(receipts[-1], request_id=request_id)
        started = time.monotonic_ns()
        receipt = AbortReceipt(
            request_id=request_id,
            state="unknown",
            accepted=False,
            authoritative=self._control is not None,
            tokens=None,
            latency_ms=0.0,
        )
        for live in self._calls.of(request_id):
            receipt = msgspec.structs.replace(
                await live.abort_publicly(self._engine), request_id=request_id
            )
        latency_ms = (time.monotonic_ns() - started) / 1e6
        return msgspec.structs.replace(receipt, latency_ms=latency_ms)

    async def abort_operations(self, ids: Sequence[str], *, by: AbortBy) -> list[AbortReceipt]:
        """Stop live requests by what users know of them (`Engine`).

        Without patches only the chats of this port are known, and those over HTTP are not.
        """
        if self._control is not None:
            return await self._control.abort_operations(ids, by=by)
        receipts = await self._calls.abort_publicly(self._engine, ids, by)
        if by != "id":
            return list(receipts.values())
        nothing = AbortReceipt("", "unknown", False, False, None, 0.0)
        return [receipts.get(i) or msgspec.structs.replace(nothing, request_id=i) for i in ids]

    async def queue(self) -> QueueSnapshot:
        """Every live request; without patches only the chats of this port, as its frontend sees."""
        if self._control is not None:
            return await self._control.queue()
        return self._calls.snapshot(self._engine)

    async def reprioritize(self, request_id: str, priority: int) -> Reprioritized:
        """Change a waiting request's priority (lower is sooner); needs the patches."""
        if self._control is not None:
            return await self._control.reprioritize(request_id, priority)
        return Reprioritized(request_id, applied=False, reason="unsupported")

    async def _create(self, call: ChatCall, live: LiveCall) -> Any:
        """vLLM's answer: a response object or its generator of server-sent events."""
        body = {**call.body, "request_id": live.engine_id}
        if call.priority:
            body["priority"] = call.priority
        request = self._request(body)
        task = asyncio.current_task()
        cancellations = task.cancelling() if task else 0
        try:
            with origin(live.origin):
                answer = await self._chat.create_chat_completion(request, None)
        except asyncio.CancelledError:
            await _scopes_own_cancellation()
            raise
        except Exception as error:
            raise from_exception(self._chat, error) from error
        if task and task.cancelling() > cancellations:
            # Some versions of vLLM answer a cancelled call with an error object instead of letting
            # the cancellation through. A task's does not come again.
            await _scopes_own_cancellation()
            raise asyncio.CancelledError
        error_object = getattr(answer, "error", None)
        if error_object is not None:
            raise from_error_object(error_object.model_dump())
        return answer

    async def _next(self, events: Any) -> str | None:
        """The next server-sent event; None when vLLM's generator ended."""
        try:
            event: str | None = await anext(events, None)
        except asyncio.CancelledError:
            await _scopes_own_cancellation()
            raise
        except Exception as error:
            raise from_exception(self._chat, error) from error
        return event

    def _request(self, body: ChatBody) -> Any:
        try:
            return self._request_class.model_validate(body)
        except ValueError as error:
            if hasattr(error, "errors"):
                raise from_validation_error(error) from error
            raise from_exception(self._chat, error) from error
        except Exception as error:
            # vLLM's validators meet bodies of any shape, and some of them trip over it.
            raise from_exception(self._chat, error) from error

    async def _end(self, live: LiveCall, events: Any = None) -> None:
        """Leave nothing of a call behind, however it ended."""
        try:
            with anyio.CancelScope(shield=True):
                if self._control is not None and live.entry is not None and live.entry.live_parts:
                    # Before vLLM's own abort, which would tell nobody where the call stood.
                    await self._control.abort([live.entry])
                if hasattr(events, "aclose"):
                    await events.aclose()
                # A call cancelled inside vLLM's admission stays registered there for ever
                # (hooks-verified.md, 4), and one whose generator was only dropped until collected.
                found = registration(self._engine, live.external_id)
                if found is not None:
                    await self._engine.abort(found.handles, internal=True)
        except Exception:
            # The call's own outcome is on its way up and must not be replaced by this.
            _LOGGER.exception("vLLM request %s could not be released", live.external_id)
        finally:
            self._calls.close(live)


async def _scopes_own_cancellation() -> None:
    """Where a cancel scope around this was cancelled, end by that; else come back.

    vLLM puts other cancellations in the place of a scope's, from futures of its own. A scope takes
    none but its own for the one that it sent: a stranger's would leave it, and end a task for
    nobody.
    """
    if anyio.current_effective_deadline() == -math.inf:
        await anyio.sleep_forever()


def parse_event(event: str) -> ChatBody | None:
    """The chunk of one server-sent event of vLLM; None for the end mark.

    Raises BackendError for an error that vLLM reports inside its stream.
    """
    data = event.strip().removeprefix(_SSE_PREFIX).strip()
    if data == _SSE_END:
        return None
    chunk: ChatBody = msgspec.json.decode(data)
    error = chunk.get("error")
    if error is not None:
        raise from_error_object(error)
    return chunk


def _not_a_boolean() -> BackendError:
    # vLLM reads "true" and 1 as true where the caller, rightly, did not.
    return BackendError(
        "stream: must be true or false", status=400, error_type="Bad Request", parameter="stream"
    )
