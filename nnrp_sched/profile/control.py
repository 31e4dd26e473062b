"""The envelope of `nnrp-sched-control/1`, this project's own requests (design, decision 10).

It has the profile's outer form, so one wire mapping carries both, and answers with the profile's
terminal documents.
"""

from typing import Any, Final

import msgspec

from nnrp_sched.errors import ProfileError
from nnrp_sched.profile.errors import profile_error

CONTROL_SCHEMA: Final = "nnrp-sched-control/1"


class ControlRequest(msgspec.Struct, frozen=True):
    """A control request: what is asked, and its arguments."""

    operation: str
    body: dict[str, Any] = {}


class _Schema(msgspec.Struct):
    schema_version: Any = None


def build_control(operation: str, body: dict[str, Any]) -> bytes:
    """Write the document a client submits."""
    return msgspec.json.encode(
        {"schema_version": CONTROL_SCHEMA, "operation": operation, "body": body}
    )


def parse_control(document: bytes, operations: frozenset[str]) -> ControlRequest | None:
    """Read a control request; None when the document is not one.

    Raises `ProfileError` for a document that says it is one and is malformed, or that asks for
    something else than `operations`.
    """
    try:
        schema = msgspec.json.decode(document, type=_Schema).schema_version
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if schema != CONTROL_SCHEMA:
        return None
    try:
        request = msgspec.json.decode(document, type=ControlRequest)
    except msgspec.ValidationError as error:
        raise _malformed(error) from error
    if request.operation not in operations:
        raise profile_error(
            "unsupported_operation",
            f"{CONTROL_SCHEMA} has no operation {request.operation[:64]!r}; it has "
            + ", ".join(sorted(operations)),
        )
    return request


def _malformed(error: msgspec.ValidationError) -> ProfileError:
    return profile_error("invalid_request_envelope", f"not a request of {CONTROL_SCHEMA}: {error}")
