"""The request envelope of `openai-compatible/1` (seed 003, section 6)."""

from typing import Any, Final

import msgspec
from msgspec import Struct

PROFILE: Final = "openai-compatible"
SCHEMA_VERSION: Final = "openai-compatible/1"
CHAT_COMPLETIONS: Final = "chat.completions.create"

MAX_DOCUMENT_BYTES: Final = 32 * 1024 * 1024
"""The longest envelope that is decoded (adapter facts 5.3)."""
MAX_DEPTH: Final = 64
"""The deepest nesting of objects and arrays that is decoded; the envelope itself is the first."""


class RequestEnvelope(Struct, frozen=True):
    """A request that passed every check."""

    operation: str
    body: dict[str, Any]
    """The OpenAI request exactly as the client wrote it; nothing of `nnrp` is in it."""
    request_id: str | None = None
    timeout_ms: int | None = None
    """The client's limit in milliseconds; None: no limit."""
    diagnostics: bool = False
    extensions: dict[str, Any] = {}
    """The keys of `nnrp` that the profile does not define (wire digest R13)."""


def parse_envelope(document: bytes, operations: frozenset[str]) -> RequestEnvelope:
    """Check a submitted document and take it apart. Raises `ProfileError`."""
    raise NotImplementedError


def build_envelope(
    body: dict[str, Any],
    *,
    operation: str = CHAT_COMPLETIONS,
    request_id: str | None = None,
    timeout_ms: int | None = None,
    diagnostics: bool | None = None,
    extensions: dict[str, Any] | None = None,
) -> bytes:
    """Write the document that a client submits; what is None is left out."""
    envelope: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "operation": operation}
    if request_id is not None:
        envelope["request_id"] = request_id
    envelope["body"] = body
    policy = dict(extensions or {})
    if timeout_ms is not None:
        policy["timeout_ms"] = timeout_ms
    if diagnostics is not None:
        policy["diagnostics"] = diagnostics
    if policy:
        envelope["nnrp"] = policy
    return msgspec.json.encode(envelope)
