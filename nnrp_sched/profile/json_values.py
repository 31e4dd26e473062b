"""What a decoded JSON value is, for code that meets values it did not choose."""

from typing import Any, Final, TypeGuard

import msgspec

JsonObject = dict[str, Any]

# Raw checks the syntax without building the value.
_syntax: Final = msgspec.json.Decoder(msgspec.Raw)
_object_syntax: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_object(value: object) -> TypeGuard[JsonObject]:
    """Whether this is a JSON object; decoded JSON has no other keys than strings."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether this is a JSON array."""
    return isinstance(value, list)


def is_position(value: object) -> TypeGuard[int]:
    """Whether this can be the index of a choice or a tool call: not negative, and no bool."""
    return type(value) is int and value >= 0


def is_json(text: str) -> bool:
    """Whether this is one JSON document."""
    return _decodes(_syntax, text)


def is_json_object(text: str) -> bool:
    """Whether this is one JSON document, and an object."""
    return _decodes(_object_syntax, text)


def _decodes(decoder: "msgspec.json.Decoder[Any]", text: str) -> bool:
    try:
        decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
