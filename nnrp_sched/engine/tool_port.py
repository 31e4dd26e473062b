"""The tool port: all that the server knows of whatever runs the tools it hosts."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from nnrp_sched.profile.scheduling import AbortReceipt
from nnrp_sched.profile.tools import CallBody, ToolAnswer, ToolDescription

EmitOutput = Callable[[str], Awaitable[None]]
"""Takes a piece of output; waits while the caller does not read."""


class HostedCall(Protocol):
    """One call of a tool."""

    async def run(self, emit: EmitOutput) -> ToolAnswer:
        """Run the tool, within the smaller of the host's limits and the caller's.

        Whatever the tool does, that is an answer: nothing is raised but what `emit` raises. May be
        cancelled at any moment; the tool is then stopped.
        """
        ...

    async def stop(self, reason: str) -> AbortReceipt:
        """What became of the tool, once `run` was cancelled.

        Authoritative when nothing of it runs any more.
        """
        ...


class ToolHost(Protocol):
    """Runs tools."""

    @property
    def tools(self) -> tuple[ToolDescription, ...]:
        """What it has; no two of the same name."""
        ...

    def call(self, asked: CallBody) -> HostedCall:
        """A call that has not begun. `asked` names one of the tools."""
        ...
