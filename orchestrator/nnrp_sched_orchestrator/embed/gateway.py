"""Answers the requests of an OpenAI client by an agent."""

import asyncio
import re
from typing import Final

import msgspec

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile.json_values import JsonObject
from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.embed.chat_calls import ChatCalls
from nnrp_sched_orchestrator.embed.chat_request import chat_request
from nnrp_sched_orchestrator.embed.loop_caller import running_loop
from nnrp_sched_orchestrator.embed.pending import ModelStream
from nnrp_sched_orchestrator.embed.records import (
    EmbedSettings,
    HttpReply,
    HttpRequest,
    Unanswered,
)
from nnrp_sched_orchestrator.embed.refusals import (
    bad_request,
    refusal_of,
    unknown_model,
    unknown_path,
)

_ONE_MODEL: Final = re.compile(r"/v1/models/(?P<model>.+)")


class Gateway:
    """An agent, as an OpenAI client sees a server."""

    def __init__(self, agent: Agent, settings: EmbedSettings | None = None) -> None:
        """To be made in the event loop that the agent lives in."""
        self._agent = agent
        self.calls = ChatCalls(agent, settings or EmbedSettings())
        self.loop = asyncio.get_running_loop()

    async def answer(self, request: HttpRequest) -> HttpReply:
        """The reply to a request.

        Raises `Unanswered` when no endpoint is to be had or the client's time is over.
        """
        if not self.runs_here():
            raise RuntimeError(
                "this client belongs to the event loop of its agent; make another for this loop"
            )
        try:
            return await self._route(request)
        except Unanswered:
            raise
        except NnrpSchedError as error:
            return refusal_of(error).reply()

    async def _route(self, request: HttpRequest) -> HttpReply:
        one_model = _ONE_MODEL.fullmatch(request.path)
        match request.method, request.path:
            case "POST", "/v1/chat/completions":
                return await self._chat(request)
            case "GET", "/v1/models":
                data = [_model(name) for name in self._agent.models]
                return _json({"object": "list", "data": data})
            case "GET", _ if one_model is not None:
                name = one_model["model"]
                known = name in self._agent.models
                return _json(_model(name)) if known else unknown_model(name).reply()
            case _, path:
                return unknown_path(path).reply()

    async def _chat(self, request: HttpRequest) -> HttpReply:
        try:
            wanted = chat_request(request)
        except ValueError as fault:
            return bad_request(str(fault)).reply()
        return await self.calls.answer(wanted)

    def runs_here(self) -> bool:
        """Whether this is a thread whose event loop the gateway lives in."""
        return running_loop() is self.loop

    def model(self, name: str | None) -> str:
        """The name of a model: as given, or the only one there is.

        Raises `ValueError` when none is given and there is not exactly one.
        """
        if name is not None:
            return name
        if len(self._agent.models) != 1:
            known = ", ".join(self._agent.models) or "none that they tell"
            raise ValueError(f"name a model; the endpoints have: {known}")
        return self._agent.models[0]

    def keeps(self, stream: ModelStream) -> bool:
        """Whether a call that has no answer yet is kept for the same request to take it over."""
        return self.calls.unclaimed.keeps(stream)

    async def aclose(self) -> None:
        """Stop what no client waits for any more."""
        await self.calls.unclaimed.aclose()


def _model(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "nnrp"}


def _json(document: JsonObject) -> HttpReply:
    return HttpReply(200, {"content-type": "application/json"}, msgspec.json.encode(document))
