"""LangChain over NNRP: a `ChatOpenAI` whose calls are calls of an agent of ours.

```python
model = chat_openai(agent, "example-model").bind_tools([grep])
async for message in model.astream("Find it."):
    ...
```

Leaving the stream early, or cancelling the task that reads it, stops the call. The blocking methods
(`invoke`, `stream`) work in threads beside the agent's event loop, as LangChain uses them there.
"""

from typing import Any

from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.embed.extras import missing
from nnrp_sched_orchestrator.embed.gateway import Gateway
from nnrp_sched_orchestrator.embed.openai_transport import (
    BASE_URL,
    async_transport,
    sync_transport,
)
from nnrp_sched_orchestrator.embed.records import EmbedSettings

try:
    import httpx2
    from langchain_openai import ChatOpenAI
except ImportError as fault:
    raise missing(__name__, "langchain", fault) from fault


def chat_openai(
    agent: Agent,
    model: str | None = None,
    *,
    settings: EmbedSettings | None = None,
    **options: Any,
) -> ChatOpenAI:
    """A chat model whose calls are calls of the agent; to be made in the agent's event loop.

    `model` is by default the only one there is; `options` are those of `ChatOpenAI`. Raises
    `ValueError` when no model is named and several are there.
    """
    gateway = Gateway(agent, settings)
    known: dict[str, Any] = {"api_key": "none", "stream_usage": True, **options}
    return ChatOpenAI(
        **known,
        use_responses_api=False,  # The environment may ask for it; NNRP carries chats.
        model=gateway.model(model),
        base_url=BASE_URL,
        http_async_client=httpx2.AsyncClient(transport=async_transport(gateway)),
        http_client=httpx2.Client(transport=sync_transport(gateway)),
    )
