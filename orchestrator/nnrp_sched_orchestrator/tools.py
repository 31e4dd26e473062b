"""Tools: what a model may call, and how a call of it runs.

```python
async def read_lines(path: str, first: int = 1, last: int = 200) -> str:
    \"\"\"Lines of a text file.

    Args:
        path: Relative to the repository.
    \"\"\"
    ...

tools = toolbox([read_lines])
```
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct

from nnrp_sched.profile.scheduling import AbortReceipt
from nnrp_sched.profile.tools import ToolDescription
from nnrp_sched_orchestrator.errors import ToolDefinitionError, ToolFailed
from nnrp_sched_orchestrator.tool_schema import ToolSchema, tool_schema

EmitOutput = Callable[[str], Awaitable[None]]
"""Takes a piece of output; waits while nobody reads."""


class ToolEnd(Struct, frozen=True):
    """What a tool that ended tells beside its output."""

    failure: str = ""
    """Why it counts as failed, when it does."""
    exit_code: int | None = None
    stderr: str = ""
    output_bytes: int | None = None
    """What it put out, when that was not all handed on."""


class ToolRun(Protocol):
    """One call of a tool."""

    @property
    def endpoint(self) -> str | None:
        """Where it runs; None: in this process or below it."""
        ...

    async def run(self, emit: EmitOutput) -> ToolEnd:
        """Do it; raises whatever went wrong.

        May be cancelled at any moment, and stops whatever it has started before it gives way to
        that.
        """
        ...

    async def stop(self, reason: str) -> AbortReceipt:
        """What became of it, once `run` is over; authoritative when nothing of it is left."""
        ...


class Tool(Struct, frozen=True):
    """Something that a model may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of its arguments, an object's."""
    start: Callable[[str], ToolRun]
    """A run with these arguments, JSON text; raises `ToolFailed` for arguments that do not fit."""
    strict: bool = False
    """Whether the server is to keep the model to the schema while it writes the arguments."""

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as a chat body's `tools` has it."""
        function: dict[str, Any] = msgspec.to_builtins(self.told)
        return {
            "type": "function",
            "function": function | ({"strict": True} if self.strict else {}),
        }

    @property
    def told(self) -> ToolDescription:
        """What models and remote callers get to know of it."""
        return ToolDescription(self.name, self.description, self.parameters)


AsyncTool = Callable[..., Awaitable[Any]] | Callable[..., AsyncIterator[Any]]


def function_tool(
    function: AsyncTool,
    *,
    name: str | None = None,
    description: str | None = None,
    strict: bool = False,
) -> Tool:
    """A tool of an async function, or of an async generator whose items are pieces of its output.

    Text is put out as it is, anything else as JSON, a generator's one item a line. With `strict`
    the server is asked to keep the model to the schema. Raises `ToolDefinitionError` for a function
    that is not async, or has parameters without a schema.
    """
    schema = tool_schema(function, name=name, description=description)
    streams = _is(inspect.isasyncgenfunction, function)
    if not streams and not _is(inspect.iscoroutinefunction, function):
        raise ToolDefinitionError(
            f"tool {schema.name!r} is not async: it would stop every stream while it runs; make it "
            "`async def`, and let `anyio.to_thread.run_sync` call what blocks"
        )

    def start(arguments: str) -> ToolRun:
        return _FunctionRun(schema.name, function, decoded(schema, arguments), streams=streams)

    return Tool(schema.name, schema.description, schema.parameters, start, strict)


def toolbox(items: Iterable[Tool | AsyncTool] | Mapping[str, Tool]) -> dict[str, Tool]:
    """Tools by their names; functions become tools. Raises `ToolDefinitionError`.

    Of a mapping its values count.
    """
    given: Any = items
    members: Iterable[Tool | AsyncTool] = given.values() if isinstance(items, Mapping) else given
    box: dict[str, Tool] = {}
    for item in members:
        if not isinstance(item, Tool) and not callable(item):
            raise ToolDefinitionError(f"{item!r} is no tool: a Tool or an async function is needed")
        each = item if isinstance(item, Tool) else function_tool(item)
        if each.name in box:
            raise ToolDefinitionError(
                f"there are two tools named {each.name!r}; rename one of them"
            )
        box[each.name] = each
    return box


def decoded(schema: ToolSchema, arguments: str) -> dict[str, Any]:
    """The arguments of a call by name, defaults included; nothing at all is an empty object.

    Raises `ToolFailed` that tells the model what to do about them.
    """
    try:
        found = msgspec.json.decode(arguments.strip() or "{}", type=schema.arguments)
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError) as error:
        raise ToolFailed(
            f"the arguments do not fit the parameters of {schema.name}: {error}; call it again "
            "with arguments that do"
        ) from error
    except msgspec.DecodeError as error:
        raise ToolFailed(
            f"the arguments of {schema.name} are not JSON: {error}; call it again with one "
            "complete JSON object"
        ) from error
    return {each: getattr(found, each) for each in schema.arguments.__struct_fields__}


def output_text(value: object) -> str:
    """What a tool's result says to a model: text as it is, None as nothing, the rest as JSON.

    Raises `ToolFailed` for what is no JSON.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError) as error:
        raise ToolFailed(
            f"the tool gave a {type(value).__name__}, which is neither text nor JSON: {error}"
        ) from error


class _FunctionRun:
    """A call of an async function; it is gone once its coroutine has ended."""

    endpoint = None

    def __init__(
        self, name: str, function: AsyncTool, arguments: Mapping[str, Any], *, streams: bool
    ) -> None:
        self._name = name
        self._function = function
        self._arguments = arguments
        self._streams = streams

    async def run(self, emit: EmitOutput) -> ToolEnd:
        made = self._function(**self._arguments)
        if self._streams:
            async with aclosing(cast("Any", made)) as items:
                async for item in items:
                    text = output_text(item)
                    await emit(text if isinstance(item, str) else f"{text}\n")
            return ToolEnd()
        text = output_text(await cast("Awaitable[Any]", made))
        if text:
            await emit(text)
        return ToolEnd()

    async def stop(self, reason: str) -> AbortReceipt:
        return AbortReceipt(self._name, "running", True, True, None, 0.0)


def _is(kind: Callable[[object], bool], function: Callable[..., Any]) -> bool:
    """Whether a function, or an object that can be called, is of this kind."""
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004
