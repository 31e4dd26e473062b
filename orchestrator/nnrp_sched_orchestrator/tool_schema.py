"""What a model has to know of a function: its JSON schema, from its signature and docstring.

The types are msgspec's: whatever it decodes from JSON can be a parameter, and arguments are checked
by the very types that the schema was made of.
"""

import enum
import functools
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from nnrp_sched.profile.tools import MAX_TOOL_NAME
from nnrp_sched_orchestrator.docstring import Documented, documented
from nnrp_sched_orchestrator.errors import ToolDefinitionError

_NAME: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{MAX_TOOL_NAME}}}")
_KINDS: Final = {
    inspect.Parameter.POSITIONAL_ONLY: "it can only be given by position",
    inspect.Parameter.VAR_POSITIONAL: "it takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "it takes any arguments",
}
"""Kinds of parameters that a JSON object cannot name, and why."""
_PLAIN: Final = (str, int, float, bool, type(None), enum.Enum)
"""Defaults that stand in the schema."""


class ToolSchema(Struct, frozen=True):
    """What is known of a function that models call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of its arguments, an object's."""
    arguments: type[Struct]
    """What the arguments are decoded as."""


def tool_schema(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None
) -> ToolSchema:
    """The schema of a function; its own name and docstring where no others are given.

    Of the docstring, what comes before its list of parameters is the description; the list may be
    in the style of Google (`Args:`), of Sphinx (`:param x:`) or of NumPy. Raises
    `ToolDefinitionError` naming the parameter that no JSON schema can be made of.
    """
    found = name or getattr(function, "__name__", "") or type(function).__name__
    check_name(found)
    told = documented(inspect.getdoc(function) or "")
    arguments = _arguments(found, function)
    parameters = _parameters(found, arguments, told)
    text = told.description if description is None else description
    return ToolSchema(found, text, parameters, arguments)


def check_name(name: str) -> None:
    """Raise `ToolDefinitionError` for a name that models cannot call a tool by."""
    if not _NAME.fullmatch(name):
        raise ToolDefinitionError(
            f"{name!r} cannot be a tool's name: it needs 1 to {MAX_TOOL_NAME} of the letters a-z, "
            "A-Z, digits, _ and -; give it another with name="
        )


def _arguments(name: str, function: Callable[..., Any]) -> type[Struct]:
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(_hinted(function), include_extras=True)
    except (TypeError, ValueError, NameError, AttributeError) as error:
        raise ToolDefinitionError(
            f"tool {name!r}: its signature cannot be read: {error}"
        ) from error
    fields: list[Any] = []
    for parameter in signature.parameters.values():
        if parameter.kind in _KINDS:
            why = _KINDS[parameter.kind]
            raise ToolDefinitionError(
                f"tool {name!r}: its parameter {parameter.name!r} cannot be in a schema: {why}; "
                "give it named parameters with types"
            )
        if parameter.name not in hints:
            raise ToolDefinitionError(
                f"tool {name!r}: its parameter {parameter.name!r} has no type; annotate it, or no "
                "model knows what to pass"
            )
        fields.append(_field(parameter, hints[parameter.name]))
    try:
        return msgspec.defstruct(
            name.replace("-", "_"), fields, kw_only=True, forbid_unknown_fields=True
        )
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"tool {name!r}: {error}") from error


def _hinted(function: Callable[..., Any]) -> Any:
    """What has the annotations: an object that is callable has them on its method."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return inspect.unwrap(inner) if inspect.isroutine(inner) else inner.__call__


def _field(parameter: inspect.Parameter, kind: Any) -> Any:
    if parameter.default is inspect.Parameter.empty:
        return (parameter.name, kind)
    if isinstance(parameter.default, _PLAIN):
        return (parameter.name, kind, parameter.default)
    # A factory takes any default, also one that is mutable or no JSON.
    return (parameter.name, kind, msgspec.field(default_factory=lambda: parameter.default))


def _parameters(name: str, arguments: type[Struct], told: Documented) -> dict[str, Any]:
    """The schema of the object itself, with what it refers to under `$defs`."""
    try:
        (reference,), components = msgspec.json.schema_components(
            [arguments], ref_template="#/$defs/{name}"
        )
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(
            f"tool {name!r} has a type that JSON cannot carry: {error}"
        ) from error
    key = str(reference["$ref"]).rpartition("/")[2]
    schema: dict[str, Any] = dict(components.pop(key))
    schema.pop("title", None)
    schema.setdefault("properties", {})
    for parameter, text in told.parameters.items():
        if parameter in schema["properties"]:
            schema["properties"][parameter].setdefault("description", text)
    if components:
        schema["$defs"] = components
    return schema
