"""httpx and httpx2, which are one library to build on: `openai` before 3.0 uses the former.

Only the module differs, so everything here takes it as a value.
"""

import importlib
from typing import Any, Final, Literal

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nnrp_sched_orchestrator.embed.extras import missing
from nnrp_sched_orchestrator.embed.records import HttpReply, HttpRequest, Unanswered

LibraryName = Literal["httpx2", "httpx"]

STREAM: Final = "nnrp_stream"
"""The extension of a response that holds the `Stream` behind it."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()


class HttpLibrary:
    """One of the two."""

    def __init__(self, name: LibraryName) -> None:
        """Raises `ImportError` when it is not installed."""
        try:
            self.module: Any = importlib.import_module(name)
        except ImportError as fault:
            raise missing(__name__, "openai", fault) from fault

    def request(self, request: Any, body: bytes) -> HttpRequest:
        """What a request of the library says; to be called where the request is made.

        The caller's span becomes its parent, as no instrumentation of `openai` says it by a header
        (orchestration anchors, 2c.6).
        """
        timeouts: dict[str, Any] = request.extensions.get("timeout") or {}
        span: dict[str, str] = {}
        _PROPAGATOR.inject(span)
        return HttpRequest(
            method=request.method,
            path=request.url.path,
            headers=span | {name.lower(): value for name, value in request.headers.items()},
            body=body,
            read_seconds=timeouts.get("read"),
        )

    def response(self, reply: HttpReply, request: Any, body: Any) -> Any:
        """A reply as a response of the library; `body` replaces a content that is streamed."""
        content = reply.content
        filled = {"content": content} if isinstance(content, bytes) else {"stream": body}
        return self.module.Response(
            reply.status,
            headers=reply.headers,
            request=request,
            # Said to be HTTP/1.1, clients would read on after the end, to use the connection again.
            extensions={"http_version": b"NNRP/1", STREAM: reply.stream},
            **filled,
        )

    def error(self, fault: Unanswered, request: Any) -> Exception:
        """The library's own error for a request without a reply."""
        found: Exception = getattr(self.module, fault.kind)(str(fault), request=request)
        return found
