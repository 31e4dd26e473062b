"""The request envelope of `openai-compatible/1` (seed 003, section 6)."""

import codecs
import reprlib
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct

from nnrp_sched.errors import ProfileError
from nnrp_sched.profile.errors import profile_error
from nnrp_sched.profile.json_values import JsonObject, is_object, is_position

PROFILE: Final = "openai-compatible"
SCHEMA_VERSION: Final = "openai-compatible/1"
CHAT_COMPLETIONS: Final = "chat.completions.create"

MAX_DOCUMENT_BYTES: Final = 32 * 1024 * 1024
"""The longest envelope that is decoded (adapter facts 5.3)."""
MAX_DEPTH: Final = 64
"""The deepest nesting of objects and arrays that is decoded; the envelope itself is the first."""

MAX_TIMEOUT_MS: Final = 2**53
"""The longest timeout; larger integers do not survive JSON readers that use doubles."""

_MEMBERS: Final = frozenset({"schema_version", "operation", "request_id", "body", "nnrp"})
_POLICY_MEMBERS: Final = frozenset({"timeout_ms", "diagnostics"})
_BODY_CHECKS: Final = MappingProxyType(
    {
        CHAT_COMPLETIONS: (
            ("model", str, "missing_model", "the name of a model"),
            ("messages", list, "missing_messages", "a list of at least one message"),
        )
    }
)
"""Operation → what its body needs: member, type, code, the rule in words."""

_AS_STEPS: Final = bytes.maketrans(b"{[}]", b"\x01\x01\xff\xff")
"""Brackets as signed bytes: one level deeper, one level back."""
_STEPS_AT_ONCE: Final = 65_536
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))


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
    """Check a submitted document and take it apart.

    `operations` are the names in the capability document. Raises `ProfileError`; of several faults
    the first in the order of adapter facts 5.2 is told. Of a key that appears twice in an object
    the last one counts, as in Python's own JSON. `timeout_ms` 0 is no limit, and an empty
    `request_id` is none.
    """
    envelope = _decode(document)
    unknown = envelope.keys() - _MEMBERS
    if unknown:
        names = reprlib.repr(sorted(unknown))
        raise profile_error(
            "invalid_request_envelope",
            f"unknown envelope members {names}; OpenAI parameters belong into `body`, "
            "hints for the server into `nnrp`",
        )
    if envelope.get("schema_version") != SCHEMA_VERSION:
        raise _refusal("unsupported_schema_version", envelope, "schema_version", SCHEMA_VERSION)
    operation = envelope.get("operation")
    if not isinstance(operation, str) or operation not in operations:
        supported = f"one of {', '.join(sorted(operations))}"
        raise _refusal("unsupported_operation", envelope, "operation", supported)
    body = envelope.get("body")
    if not is_object(body):
        raise _refusal("invalid_body", envelope, "body", "the OpenAI request as an object")
    for name, kind, code, wanted in _BODY_CHECKS.get(operation, ()):
        value = body.get(name)
        if not value or not isinstance(value, kind):
            raise _refusal(code, body, name, wanted, within="body.")
    request_id = envelope.get("request_id", "")
    if not isinstance(request_id, str):
        raise _refusal("invalid_request_id", envelope, "request_id", "a string or left out")
    policy = envelope.get("nnrp", {})
    if not is_object(policy):
        raise _refusal("invalid_nnrp_policy", envelope, "nnrp", "an object or left out")
    return _with_policy(operation, body, request_id or None, policy)


def _with_policy(
    operation: str, body: JsonObject, request_id: str | None, policy: JsonObject
) -> RequestEnvelope:
    timeout_ms = policy.get("timeout_ms", 0)
    if not is_position(timeout_ms) or timeout_ms > MAX_TIMEOUT_MS:
        wanted = f"a whole number of milliseconds from 0 (no limit) to {MAX_TIMEOUT_MS}"
        raise _refusal("invalid_nnrp_policy", policy, "timeout_ms", wanted, within="nnrp.")
    diagnostics = policy.get("diagnostics", False)
    if not isinstance(diagnostics, bool):
        wanted = "true or false"
        raise _refusal("invalid_nnrp_policy", policy, "diagnostics", wanted, within="nnrp.")
    return RequestEnvelope(
        operation=operation,
        body=body,
        request_id=request_id,
        timeout_ms=timeout_ms or None,
        diagnostics=diagnostics,
        extensions={name: policy[name] for name in policy if name not in _POLICY_MEMBERS},
    )


def _decode(document: bytes) -> JsonObject:
    if len(document) > MAX_DOCUMENT_BYTES:
        raise _invalid(
            f"has {len(document)} bytes, more than the {MAX_DOCUMENT_BYTES} accepted; send less"
        )
    if document.startswith(codecs.BOM_UTF8):
        raise _invalid("begins with a byte order mark; send UTF-8 without one")
    if exceeds_depth(document, MAX_DEPTH):
        raise _invalid(f"nests objects and arrays deeper than {MAX_DEPTH}; send a flatter one")
    try:
        value = msgspec.json.decode(document)
    except msgspec.DecodeError as fault:
        raise _invalid(
            f"is not one UTF-8 JSON document: {fault}; send exactly one object"
        ) from fault
    if not is_object(value):
        raise _invalid("is JSON but no object; send exactly one object, the request envelope")
    return value


def exceeds_depth(document: bytes, limit: int) -> bool:
    """Whether JSON text nests objects and arrays deeper than `limit`, without decoding it.

    Brackets inside strings do not count. Of malformed text it only finds what opens too often; the
    decoder names the real fault. The work is linear in the document, whatever it holds.
    """
    if document.count(b"{") + document.count(b"[") <= limit:
        return False
    if b"\\" in document:
        # In this order, so that a string's closing quote after an escaped backslash stays.
        document = document.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(document.split(b'"')[::2])
    steps = memoryview(outside_strings.translate(_AS_STEPS, _NO_BRACKETS)).cast("b")
    depth = 0
    for start in range(0, len(steps), _STEPS_AT_ONCE):
        depths = list(accumulate(steps[start : start + _STEPS_AT_ONCE], initial=depth))
        if max(depths) > limit:
            return True
        depth = depths[-1]
    return False


def _refusal(
    code: str, members: JsonObject, name: str, wanted: str, *, within: str = ""
) -> ProfileError:
    shown = reprlib.repr(members[name]) if name in members else "missing"
    return profile_error(code, f"`{within}{name}` must be {wanted}; it is {shown}")


def _invalid(fault: str) -> ProfileError:
    return profile_error("invalid_submit_body", f"the submitted document {fault}")


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
