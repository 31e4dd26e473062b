"""What a decoded JSON value is, for code that meets values it did not choose."""

from typing import Any, TypeGuard

JsonObject = dict[str, Any]


def is_object(value: object) -> TypeGuard[JsonObject]:
    """Whether this is a JSON object; decoded JSON has no other keys than strings."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether this is a JSON array."""
    return isinstance(value, list)


def is_position(value: object) -> TypeGuard[int]:
    """Whether this can be the index of a choice or a tool call: not negative, and no bool."""
    return type(value) is int and value >= 0
