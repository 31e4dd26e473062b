"""A client's requests for chat completions, as calls of an agent."""

import time
from urllib.parse import quote

import msgspec

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.embed.chat_request import ChatRequest
from nnrp_sched_orchestrator.embed.chunks import ChunkWriter
from nnrp_sched_orchestrator.embed.event_bytes import EventBytes
from nnrp_sched_orchestrator.embed.pending import ModelStream, PendingCall, Unclaimed
from nnrp_sched_orchestrator.embed.records import EmbedSettings, HttpReply, Unanswered
from nnrp_sched_orchestrator.embed.refusals import cancelled, refusal_of


class ChatCalls:
    """Makes the calls, and gives a retry the call of the try before it.

    A request is the retry of another when it asks for the same and that one's client has timed
    out: the call goes on for a while (`pending.Unclaimed`), and is taken over. A lost connection is
    no reason for a client to try again: the agent submits the call again wherever that cannot run
    it twice.
    """

    def __init__(self, agent: Agent, settings: EmbedSettings) -> None:
        self._agent = agent
        self._settings = settings
        self.unclaimed = Unclaimed(settings.retry_seconds, settings.unclaimed_limit)

    async def answer(self, request: ChatRequest) -> HttpReply:
        """The reply to a request.

        Raises `Unanswered` when no endpoint is to be had or the client's time is over.
        """
        call = self.unclaimed.claim(request.fingerprint) or self._start(request)
        if not await call.answered(request.read_seconds):
            await self._keep(call)
            seconds = request.read_seconds or 0.0
            raise Unanswered(
                "ReadTimeout",
                f"{call.stream.id} has no answer after {seconds:g} s",
                stream=call.stream,
            )
        try:
            if request.stream:
                return await self._streamed(call, request)
            return await _whole(call.stream)
        except NnrpSchedError as error:
            produced = call.stream.timings.first_event is not None
            return refusal_of(error, produced=produced).reply()

    def _start(self, request: ChatRequest) -> PendingCall:
        stream = self._agent.chat(
            request.body,
            on_loss="resubmit",
            idempotency_key=request.key,
            traceparent=request.traceparent,
        )
        return PendingCall(stream, request.fingerprint, streamed=request.stream)

    async def _keep(self, call: PendingCall) -> None:
        if self._settings.retry_seconds > 0:
            self.unclaimed.put(call)
        else:
            await call.stop("its client has timed out")

    async def _streamed(self, call: PendingCall, request: ChatRequest) -> HttpReply:
        first = await call.first_event()
        writer = ChunkWriter(
            call.stream.id,
            request.model,
            int(time.time()),
            include_usage=request.include_usage,
        )
        body = EventBytes(call, writer, first, request.read_seconds)
        return HttpReply(200, _headers(call.stream, "text/event-stream"), body, call.stream)


async def _whole(stream: ModelStream) -> HttpReply:
    result = await stream.result()
    if result.status == "cancelled":
        reason = stream.receipt.reason if stream.receipt is not None else ""
        return cancelled(reason).reply()
    document = msgspec.json.encode(result.body)
    return HttpReply(200, _headers(stream, "application/json"), document, stream)


def _headers(stream: ModelStream, content_type: str) -> dict[str, str]:
    """Clients of `openai` show `x-request-id` as the `_request_id` of what they return."""
    return {"content-type": content_type, "x-request-id": quote(stream.id, safe="/#:@")}
