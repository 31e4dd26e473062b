"""The OpenAI Agents SDK over NNRP: a `Model` and a `ModelProvider`.

```python
provider = NnrpProvider(agent, "example-model")
run = Runner.run_streamed(sdk_agent, "Find it.", run_config=RunConfig(model_provider=provider))
```

The SDK's run belongs to an agent of ours: its model calls are paid from that one's budget and end
with it. `RunResultStreaming.cancel()` ends the call under way; `agent.receipts` has the proof.
"""

from typing import Any

from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.embed.extras import missing
from nnrp_sched_orchestrator.embed.gateway import Gateway
from nnrp_sched_orchestrator.embed.pending import ModelStream
from nnrp_sched_orchestrator.embed.records import EmbedSettings, Unanswered

try:
    from agents import Model, ModelProvider, ModelRetryAdvice, ModelRetryAdviceRequest, UserError
    from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
    from openai import AsyncOpenAI

    from nnrp_sched_orchestrator.embed.openai_client import over_gateway
except ImportError as fault:
    raise missing(__name__, "agents", fault) from fault


class NnrpModel(OpenAIChatCompletionsModel):
    """A model whose calls are calls of an agent of ours. Made by `NnrpProvider`.

    Turning the SDK's items into chats, and back, is left to the SDK.
    """

    def __init__(self, model: str, client: AsyncOpenAI, gateway: Gateway) -> None:
        """`client` is one over `gateway`."""
        super().__init__(model=model, openai_client=client)
        self.gateway = gateway

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Not to make a call again beside one that still runs, or may.

        One whose client has timed out goes on for a while, and the same request takes it over:
        that alone is safe.
        """
        stream = _stream_of(request.error)
        if stream is None:
            return super().get_retry_advice(request)
        receipt = stream.receipt
        if receipt is None and self.gateway.keeps(stream):
            reason = f"{stream.id} still runs, and the same request takes it over"
            return ModelRetryAdvice(suggested=True, replay_safety="safe", reason=reason)
        if receipt is None or not receipt.authoritative:
            reason = f"{stream.id} may still run: another call would be made beside it"
            return ModelRetryAdvice(suggested=False, replay_safety="unsafe", reason=reason)
        return super().get_retry_advice(request)


class NnrpProvider(ModelProvider):
    """Gives the SDK models whose calls are calls of an agent of ours."""

    def __init__(
        self,
        agent: Agent,
        model: str | None = None,
        *,
        settings: EmbedSettings | None = None,
        **options: Any,
    ) -> None:
        """`model` is for SDK agents that name none; by default the only one there is.

        `options` are those of `AsyncOpenAI`. To be made in the agent's event loop.
        """
        self._model = model
        self.gateway = Gateway(agent, settings)
        self._client = over_gateway(self.gateway, **options)

    def get_model(self, model_name: str | None) -> Model:
        """The model of that name. Raises `UserError` when none is named and several are there."""
        try:
            name = self.gateway.model(model_name or self._model)
        except ValueError as error:
            raise UserError(str(error)) from error
        return NnrpModel(name, self._client, self.gateway)

    async def aclose(self) -> None:
        """Close the client; calls that nobody waits for are stopped."""
        await self._client.close()


def _stream_of(error: BaseException | None) -> ModelStream | None:
    """The call without an answer that `openai` and its HTTP library tell of."""
    while error is not None and not isinstance(error, Unanswered):
        error = error.__cause__
    return None if error is None else error.stream
