"""Transports for httpx and httpx2 clients that end at an agent instead of a network.

An HTTP client over one is what every framework takes that builds on `openai`:

```python
http_client = httpx2.AsyncClient(transport=transport(agent))
client = AsyncOpenAI(api_key="none", base_url=BASE_URL, http_client=http_client)
```

`openai_client.async_openai(agent)` is this in one call.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

from nnrp_sched_orchestrator.agent import Agent
from nnrp_sched_orchestrator.embed.event_bytes import EventBytes
from nnrp_sched_orchestrator.embed.gateway import Gateway
from nnrp_sched_orchestrator.embed.http_library import HttpLibrary, LibraryName
from nnrp_sched_orchestrator.embed.loop_caller import LoopCaller
from nnrp_sched_orchestrator.embed.records import EmbedSettings, Unanswered

BASE_URL: Final = "http://nnrp.invalid/v1"
"""For clients over a transport of ours: a name that no network has (RFC 6761), so that a client
without such a transport finds nobody."""


def transport(
    agent: Agent, library: LibraryName = "httpx2", settings: EmbedSettings | None = None
) -> Any:
    """An `AsyncBaseTransport` of the library, whose requests are calls of the agent.

    To be made in the agent's event loop, and used there. Closing it stops what clients have left
    behind. Raises `ImportError` when the library is not installed.
    """
    return async_transport(Gateway(agent, settings), library)


def async_transport(gateway: Gateway, library: LibraryName = "httpx2") -> Any:
    """An `AsyncBaseTransport` of the library over a gateway, which it closes."""
    return _async_class(library)(gateway)


def sync_transport(gateway: Gateway, library: LibraryName = "httpx2") -> Any:
    """A `BaseTransport` of the library, for threads beside that of the gateway's loop.

    What is set as its `on_close` is called when it is closed.
    """
    return _sync_class(library)(gateway)


@functools.cache
def _async_class(name: LibraryName) -> type[Any]:
    library = HttpLibrary(name)
    bases = library.module
    body = type("NnrpBody", (_AsyncBody, bases.AsyncByteStream), {"library": library})
    members = {"library": library, "body": body}
    return type("NnrpTransport", (_AsyncTransport, bases.AsyncBaseTransport), members)


@functools.cache
def _sync_class(name: LibraryName) -> type[Any]:
    library = HttpLibrary(name)
    bases = library.module
    body = type("NnrpBody", (_SyncBody, bases.SyncByteStream), {"library": library})
    members = {"library": library, "body": body}
    return type("NnrpTransport", (_SyncTransport, bases.BaseTransport), members)


class _AsyncTransport:
    library: HttpLibrary
    body: type["_AsyncBody"]

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def handle_async_request(self, request: Any) -> Any:
        wanted = self.library.request(request, await request.aread())
        try:
            reply = await self.gateway.answer(wanted)
        except Unanswered as fault:
            raise self.library.error(fault, request) from fault
        content, body = reply.content, None
        if isinstance(content, EventBytes):
            body = self.body(content, request)
        return self.library.response(reply, request, body)

    async def aclose(self) -> None:
        await self.gateway.aclose()


class _AsyncBody:
    """A streamed body. One iterator, however often it is asked for."""

    library: HttpLibrary

    def __init__(self, content: EventBytes, request: Any) -> None:
        self._content = content
        self._request = request

    def __aiter__(self) -> "_AsyncBody":
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._content.read()
        except Unanswered as fault:
            raise self.library.error(fault, self._request) from fault
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        await self._content.aclose()


class _SyncTransport:
    library: HttpLibrary
    body: type["_SyncBody"]

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.on_close: Callable[[], object] | None = None
        self._caller = LoopCaller(gateway.loop)

    def handle_request(self, request: Any) -> Any:
        wanted = self.library.request(request, request.read())
        try:
            reply = self._caller.call(self.gateway.answer, wanted)
        except Unanswered as fault:
            raise self.library.error(fault, request) from fault
        content, body = reply.content, None
        if isinstance(content, EventBytes):
            body = self.body(content, request, self._caller)
        return self.library.response(reply, request, body)

    def close(self) -> None:
        if self.on_close is not None:
            self.on_close()


class _SyncBody:
    library: HttpLibrary

    def __init__(self, content: EventBytes, request: Any, caller: LoopCaller) -> None:
        self._content = content
        self._request = request
        self._caller = caller

    def __iter__(self) -> "_SyncBody":
        return self

    def __next__(self) -> bytes:
        try:
            piece = self._caller.call(self._content.read)
        except Unanswered as fault:
            raise self.library.error(fault, self._request) from fault
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        self._caller.finish(self._content.aclose)
