"""The tools that a server hosts: what may be called, and how many calls run at once."""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from nnrp_sched.engine.tool_port import ToolHost
from nnrp_sched.profile import Completed, Extension, profile_error
from nnrp_sched.profile.control_bodies import Nothing, parse_body
from nnrp_sched.profile.own_requests import OwnRequest
from nnrp_sched.profile.tools import (
    TOOLS_LIST,
    TOOLS_OPERATIONS,
    TOOLS_SCHEMA,
    CallBody,
    ToolList,
    parse_tools,
)
from nnrp_sched.server.terminal import OperationChannel
from nnrp_sched.server.tool_operation import Answered, ToolOperation

logger = logging.getLogger(__name__)

TOOLS_EXTENSION: Final = Extension(
    name=TOOLS_SCHEMA,
    critical=False,
    description="tools that this server runs: " + ", ".join(sorted(TOOLS_OPERATIONS)),
)


class ToolCalls:
    """The tool calls of one server."""

    def __init__(self, host: ToolHost | None, max_calls: int) -> None:
        """Without a host every request is refused; at most `max_calls` run at once."""
        self.host = host
        self._max_calls = max_calls
        self._running = 0

    def __len__(self) -> int:
        return self._running

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """What the capability document declares of them."""
        return () if self.host is None else (TOOLS_EXTENSION,)

    def request(self, document: bytes) -> OwnRequest | None:
        """Read a request for tools; None when it is none. Raises `ProfileError`."""
        request = parse_tools(document)
        if request is not None and self.host is None:
            raise profile_error(
                "unsupported_schema_version",
                f"this server hosts no tools, so it has no {TOOLS_SCHEMA}; `nnrp-sched tool-host` "
                "starts one that does",
            )
        return request

    def operation(
        self, request: OwnRequest, channel: OperationChannel, name: str, *, stop_seconds: float
    ) -> tuple[ToolOperation | Answered, Callable[[], None]]:
        """The operation of a request, and what gives its place back. Raises `ProfileError`.

        `name` is its id as users see it; a tool has `stop_seconds` to be gone when it is stopped.
        """
        if request.operation == TOOLS_LIST:
            parse_body(request.body, Nothing)
            listed = Completed(body=msgspec.to_builtins(ToolList(self._tools.tools)))
            return Answered(listed, channel), _nothing
        asked = self._asked(request)
        call = self._tools.call(asked)
        if self._running >= self._max_calls:
            raise profile_error(
                "adapter_operation_limit",
                f"this server runs {self._max_calls} tool calls at once; retry later",
            )
        self._running += 1
        logger.info("tool call %s: %s, the caller's %s", name, asked.name, asked.call_id)
        return ToolOperation(name, call, channel, stop_seconds=stop_seconds), self._release

    def _asked(self, request: OwnRequest) -> CallBody:
        asked = parse_body(request.body, CallBody)
        names = [each.name for each in self._tools.tools]
        if asked.name not in names:
            raise profile_error(
                "invalid_body",
                f"this host has no tool {asked.name!r}; it has " + (", ".join(names) or "none"),
            )
        return asked

    def _release(self) -> None:
        self._running -= 1

    @property
    def _tools(self) -> ToolHost:
        assert self.host is not None
        return self.host


def _nothing() -> None:
    """A list needs no place: it is there at once."""
