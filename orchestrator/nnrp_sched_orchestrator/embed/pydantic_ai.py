"""pydantic-ai over NNRP: a `Model` whose `cancel()` ends in a receipt.

```python
model = NnrpModel(agent, "example-model")
async with pydantic_ai.Agent(model).run_stream("Find it.") as run:
    ...
    await run.cancel()
print(agent.receipts[-1])
```

The calls of the model are calls of an agent of ours: they are paid from its budget and end with it.
"""

from typing import Any

from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.embed.extras import missing
from nnrp_sched_orchestrator.embed.gateway import Gateway
from nnrp_sched_orchestrator.embed.http_library import STREAM
from nnrp_sched_orchestrator.embed.pending import ModelStream
from nnrp_sched_orchestrator.embed.records import EmbedSettings
from nnrp_sched_orchestrator.records import Receipt

try:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
    from pydantic_ai.providers.vllm import VLLMProvider

    from nnrp_sched_orchestrator.embed.openai_client import over_gateway
except ImportError as fault:
    raise missing(__name__, "pydantic-ai", fault) from fault


class NnrpStreamedResponse(OpenAIStreamedResponse):
    """A streamed response that knows the call behind it.

    `cancel()`, and whatever else closes it early, waits until the engine has let go of the call.
    """

    @property
    def receipt(self) -> Receipt | None:
        """Proof of the call's end, once it has ended."""
        stream: ModelStream = self._response.source.response.extensions[STREAM]
        return stream.receipt


class NnrpModel(OpenAIChatModel):
    """A model whose calls are calls of an agent of ours.

    Turning pydantic-ai's messages into chats, and back, is left to pydantic-ai, as for vLLM.
    """

    def __init__(
        self,
        agent: Agent,
        model: str | None = None,
        *,
        embed_settings: EmbedSettings | None = None,
        client_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """`model` is by default the only one there is; `options` are those of `OpenAIChatModel`.

        `client_options` are those of `AsyncOpenAI`. To be made in the agent's event loop. Raises
        `ValueError` when no model is named and several are there.
        """
        self._gateway = Gateway(agent, embed_settings)
        client = over_gateway(self._gateway, **(client_options or {}))
        name = self._gateway.model(model)
        super().__init__(name, provider=VLLMProvider(openai_client=client), **options)

    async def aclose(self) -> None:
        """Close the client; calls that nobody waits for are stopped."""
        await self.client.close()

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return NnrpStreamedResponse
