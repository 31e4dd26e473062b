"""Schemas from signatures and docstrings."""

import functools
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from nnrp_sched_orchestrator.errors import ToolDefinitionError
from nnrp_sched_orchestrator.subprocess_tool import subprocess_tool
from nnrp_sched_orchestrator.tool_schema import tool_schema
from nnrp_sched_orchestrator.tools import function_tool, toolbox


class Range(Struct):
    """Lines of a file."""

    first: int
    last: int | None = None


async def read_file(
    path: str,
    lines: Range | None = None,
    mode: Literal["text", "hex"] = "text",
    most: Annotated[int, Meta(ge=1, description="Characters.")] = 100,
    skip: list[str] = ["a"],  # noqa: B006
) -> str:
    """Read a file of the repository.

    Args:
        path: Relative to its root.
        most: Not this text: the type's own counts.
        nothing: There is no such parameter.
    """
    return f"{path} {lines} {mode} {most} {skip}"


def test_a_function_gives_the_schema_of_its_parameters() -> None:
    schema = tool_schema(read_file)
    assert (schema.name, schema.description) == ("read_file", "Read a file of the repository.")
    properties = schema.parameters["properties"]
    assert schema.parameters["type"] == "object"
    assert schema.parameters["required"] == ["path"]
    assert schema.parameters["additionalProperties"] is False
    assert properties["path"] == {"type": "string", "description": "Relative to its root."}
    assert properties["mode"] == {"enum": ["hex", "text"], "default": "text"}
    assert properties["most"]["description"] == "Characters."
    assert (properties["most"]["minimum"], properties["most"]["default"]) == (1, 100)
    assert {"$ref": "#/$defs/Range"} in properties["lines"]["anyOf"]
    assert schema.parameters["$defs"]["Range"]["required"] == ["first"]
    assert "nothing" not in properties


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    async def now() -> str:
        return "now"

    parameters = tool_schema(now).parameters
    assert parameters["properties"] == {}
    assert parameters.get("required", []) == []


def test_a_name_and_a_description_can_be_given() -> None:
    schema = tool_schema(read_file, name="cat", description="Show it.")
    assert (schema.name, schema.description) == ("cat", "Show it.")


class Reader:
    """An object with a root."""

    async def read(self, path: str) -> str:
        return path

    async def __call__(self, path: str) -> str:
        return path


@pytest.mark.parametrize(
    "function",
    [Reader().read, functools.partial(read_file, most=3), Reader()],
    ids=["method", "partial", "object"],
)
def test_whatever_can_be_called_has_a_schema(function: Callable[..., Any]) -> None:
    schema = tool_schema(function, name="read")
    assert schema.parameters["properties"]["path"]["type"] == "string"
    assert "self" not in schema.parameters["properties"]


async def _many(*paths: str) -> None: ...
async def _any(**options: str) -> None: ...
async def _position(path: str, /) -> None: ...
async def _no_json(path: Callable[[], None]) -> None: ...


def _annotated(**annotations: Any) -> Callable[..., Any]:
    async def found(path: Any) -> None: ...

    found.__annotations__ = annotations
    return found


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (_many, "'paths'.*any number"),
        (_any, "'options'.*any arguments"),
        (_position, "'path'.*by position"),
        (_annotated(), "'path' has no type"),
        (_no_json, "_no_json"),
        (_annotated(path="Nobody"), "Nobody"),
    ],
)
def test_what_has_no_schema_is_refused_by_name(function: Callable[..., Any], named: str) -> None:
    with pytest.raises(ToolDefinitionError, match=named):
        tool_schema(function)


@pytest.mark.parametrize("name", ["a b", "ä", "x" * 65, "a.b", "f\n"])
def test_a_name_that_models_cannot_use_is_refused(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match="name="):
        tool_schema(read_file, name=name)


def test_a_function_that_would_block_everything_is_refused() -> None:
    def read(path: str) -> Any:
        return path

    with pytest.raises(ToolDefinitionError, match="to_thread"):
        function_tool(read)


def test_two_tools_of_one_name_are_refused() -> None:
    async def read(path: str) -> AsyncIterator[str]:
        yield path

    tool = function_tool(read_file, name="read")
    with pytest.raises(ToolDefinitionError, match="two tools named 'read'"):
        toolbox([tool, read])


def test_a_tool_is_defined_to_models_as_openai_has_it() -> None:
    (tool,) = toolbox([read_file]).values()
    assert tool.definition["type"] == "function"
    function = tool.definition["function"]
    assert set(function) == {"name", "description", "parameters"}
    assert function["parameters"]["properties"].keys() >= {"path", "lines"}


def test_a_strict_tool_asks_the_server_to_keep_the_model_to_its_schema() -> None:
    @subprocess_tool(strict=True)
    def show(path: str) -> list[str]:
        return ["cat", "--", path]

    for tool in (function_tool(read_file, strict=True), show):
        assert tool.definition["function"]["strict"] is True
