"""The tools that a server hosts: what may be called, and how many calls run at once."""

from typing import Final

import msgspec

from nnrp_sched.engine.tool_port import ToolHost
from nnrp_sched.errors import ProfileError
from nnrp_sched.profile import Completed, Extension, profile_error
from nnrp_sched.profile.control_bodies import Nothing, parse_body
from nnrp_sched.profile.own_requests import OwnRequest
from nnrp_sched.profile.tools import (
    TOOLS_CALL,
    TOOLS_LIST,
    TOOLS_OPERATIONS,
    TOOLS_SCHEMA,
    CallBody,
    ToolList,
    parse_tools,
)

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

    def listed(self, request: OwnRequest) -> Completed | None:
        """The answer to tools.list; None for a call. Raises `ProfileError`."""
        if request.operation != TOOLS_LIST:
            return None
        parse_body(request.body, Nothing)
        return Completed(body=msgspec.to_builtins(ToolList(self._tools.tools)))

    def asked(self, request: OwnRequest) -> CallBody:
        """The call that is asked for; raises `ProfileError` for one that cannot be made."""
        assert request.operation == TOOLS_CALL
        asked = parse_body(request.body, CallBody)
        names = [each.name for each in self._tools.tools]
        if asked.name not in names:
            raise profile_error(
                "invalid_body",
                f"this host has no tool {asked.name!r}; it has " + (", ".join(names) or "none"),
            )
        return asked

    def admit(self) -> None:
        """Take a place for a call; raises `ProfileError` when all are taken."""
        if self._running >= self._max_calls:
            raise profile_error(
                "adapter_operation_limit",
                f"this server runs {self._max_calls} tool calls at once; retry later",
            )
        self._running += 1

    def release(self) -> None:
        """Give the place of a call back."""
        self._running -= 1

    @property
    def _tools(self) -> ToolHost:
        assert self.host is not None
        return self.host


def refuses(error: ProfileError) -> bool:
    """Whether it says that a document is of another schema than the profile's."""
    return error.code == "unsupported_schema_version"
