"""Who asks over HTTP: the identity headers that stock agents send, read before vLLM's own app.

The names are those of Dynamo's table (orchestration anchors, 2b), so Claude Code, Codex, opencode
and Dynamo clients appear in the ledger as trees with no change to them.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from nnrp_sched.engine.records import Caller
from nnrp_sched_patches.frontend import now_ms
from nnrp_sched_patches.origin import Origin, origin

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_PROGRAM: Final = ("x-claude-code-session-id",)
"""Headers that name the whole run; the agent stands in another one."""
_AGENT: Final = ("x-claude-code-agent-id",)
_SESSION: Final = ("session-id", "x-session-id", "x-dynamo-session-id")
"""Headers with one session for each agent: a run is the tree of them."""
_PARENT: Final = (
    "x-claude-code-parent-agent-id",
    "x-parent-session-id",
    "x-dynamo-parent-session-id",
)
_TRACEPARENT: Final = "traceparent"
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""Paths of vLLM's API, and OpenTelemetry's names for what they do."""
_WANTED: Final = frozenset((*_PROGRAM, *_AGENT, *_SESSION, *_PARENT, _TRACEPARENT))

MAX_NAME: Final = 256
"""Longer names, or such with control characters, are no names: anyone may send headers."""
_SESSIONS_KEPT: Final = 4096


class IdentityMiddleware:
    """ASGI: puts caller and trace of each HTTP request where vLLM's admission finds them."""

    def __init__(self, app: App) -> None:
        """`app` is what the requests go on to."""
        self._app = app
        self._roots: OrderedDict[str, str] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = identity_headers(scope["headers"])
        came = Origin(
            caller=self._caller(headers),
            source="http",
            arrived=now_ms(),
            traceparent=headers.get(_TRACEPARENT),
            operation=_OPERATIONS.get(scope.get("path", "")),
        )
        with origin(came):
            await self._app(scope, receive, send)

    def _caller(self, headers: Mapping[str, str]) -> Caller:
        program, agent = _first(headers, _PROGRAM), _first(headers, _AGENT)
        parent = _first(headers, _PARENT)
        if program is not None:
            return Caller(program=program, agent=agent, parent=parent)
        session = _first(headers, _SESSION)
        if session is None:
            return Caller(parent=parent)
        return Caller(program=self._root(session, parent), agent=session, parent=parent)

    def _root(self, session: str, parent: str | None) -> str:
        """The first session of the tree, as far as its sessions have been seen."""
        root = session if parent is None else self._roots.get(parent, parent)
        self._roots[session] = root
        self._roots.move_to_end(session)
        if len(self._roots) > _SESSIONS_KEPT:
            self._roots.popitem(last=False)
        return root


def identity_headers(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers that say who asks, of an ASGI scope; the first of each name."""
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1").lower()
        if key in _WANTED:
            text = value.decode("latin-1").strip()
            if text and len(text) <= MAX_NAME and text.isprintable():
                found.setdefault(key, text)
    return found


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((headers[name] for name in names if name in headers), None)
