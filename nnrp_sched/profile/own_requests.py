"""Requests of this project's own schemas (design, decision 10).

They have the profile's outer form, so one wire mapping carries them all, and answer with the
profile's terminal documents.
"""

from typing import Any

import msgspec
from msgspec import Struct

from nnrp_sched.errors import ProfileError
from nnrp_sched.profile.errors import profile_error


class OwnRequest(Struct, frozen=True):
    """A request: what is asked, and its arguments."""

    operation: str
    body: dict[str, Any] = {}


class _Schema(Struct):
    schema_version: Any = None


def build_own(schema: str, operation: str, body: dict[str, Any]) -> bytes:
    """Write the document a client submits."""
    return msgspec.json.encode({"schema_version": schema, "operation": operation, "body": body})


def parse_own(document: bytes, schema: str, operations: frozenset[str]) -> OwnRequest | None:
    """Read a request of a schema; None when the document is not one.

    Raises `ProfileError` for a document that says it is one and is malformed, or that asks for
    something else than `operations`.
    """
    try:
        said = msgspec.json.decode(document, type=_Schema).schema_version
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if said != schema:
        return None
    try:
        request = msgspec.json.decode(document, type=OwnRequest)
    except msgspec.ValidationError as error:
        raise _malformed(schema, error) from error
    if request.operation not in operations:
        raise profile_error(
            "unsupported_operation",
            f"{schema} has no operation {request.operation[:64]!r}; it has "
            + ", ".join(sorted(operations)),
        )
    return request


def _malformed(schema: str, error: msgspec.ValidationError) -> ProfileError:
    return profile_error("invalid_request_envelope", f"not a request of {schema}: {error}")
