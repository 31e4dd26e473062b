"""Tools for others: what a server needs of its tool host (`engine.tool_port`), over our tools."""

from collections.abc import Iterable, Mapping

from nnrp_sched.profile.tools import CallBody, ToolDescription
from nnrp_sched_orchestrator.tool_call import BoundedCall, ToolLimits
from nnrp_sched_orchestrator.tools import AsyncTool, Tool, toolbox


class LocalToolHost:
    """Runs tools of this process for remote callers, each call within limits."""

    def __init__(
        self,
        tools: Iterable[Tool | AsyncTool] | Mapping[str, Tool],
        limits: ToolLimits | None = None,
    ) -> None:
        """`limits` bound each call; a caller can only want less. Raises `ToolDefinitionError`."""
        self._tools = toolbox(tools)
        self._limits = limits or ToolLimits()

    @property
    def tools(self) -> tuple[ToolDescription, ...]:
        """What it has."""
        return tuple(tool.told for tool in self._tools.values())

    def call(self, asked: CallBody) -> BoundedCall:
        """A call that has not begun; raises `KeyError` for a tool that is not there."""
        limits = self._limits.within(asked.max_output_bytes, asked.max_seconds)
        return BoundedCall(self._tools[asked.name], asked.arguments, limits)
