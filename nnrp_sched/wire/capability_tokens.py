"""What two peers can agree on in a session, and how the list of it is written (wire digest 3.9)."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire.enums import ErrorCode

MAX_TOKENS: Final = 256
"""Tokens in one negotiation; the registry has fewer than twenty."""

_LENGTH_BYTES: Final = 2
_U16: Final = 0xFFFF


class CapabilityToken(StrEnum):
    """The control capabilities of the registry that mean something to this project."""

    CANCEL_ABORT = "control.cancel_abort"
    SUPERSEDE = "control.supersede"
    PRIORITY_UPDATE = "control.priority_update"
    DEADLINE_EXPIRE = "control.deadline_expire"
    PROGRESS_PARTIAL = "control.progress_partial"
    CREDIT_BACKPRESSURE = "control.credit_backpressure"
    TRACE_CONTEXT = "control.trace_context"
    RESULT_DROP_REASON = "control.result_drop_reason"
    DEGRADE_PROFILE = "control.degrade_profile"
    BUDGET_UPDATE = "control.budget_update"
    RECOVERABLE_ERROR = "control.recoverable_error"


class TokenFault(ValueError):
    """A list of tokens that cannot be read; the text says why."""


def encode_tokens(tokens: Iterable[str]) -> bytes:
    """The tokens sorted, each once, each with its length before it.

    Raises `LocalProtocolError` for a token that is empty, too long or not ASCII, and for too many.
    """
    ordered = sorted(set(tokens))
    if len(ordered) > MAX_TOKENS:
        raise LocalProtocolError(
            f"{len(ordered)} capability tokens are more than {MAX_TOKENS}",
            code=ErrorCode.LIMIT_EXCEEDED,
        )
    pieces: list[bytes] = []
    for token in ordered:
        if not token.isascii() or not 0 < len(token) <= _U16:
            raise LocalProtocolError(
                f"{token!r} is no capability token", code=ErrorCode.MALFORMED_BODY
            )
        pieces.append(len(token).to_bytes(_LENGTH_BYTES, "little") + token.encode())
    return b"".join(pieces)


def decode_tokens(count: int, body: bytes) -> tuple[str, ...]:
    """The tokens of a negotiation: `count` of them, rising, and nothing behind.

    Raises `TokenFault`.
    """
    if count > MAX_TOKENS:
        raise TokenFault(f"{count} capability tokens are more than {MAX_TOKENS}")
    tokens: list[str] = []
    place = 0
    for _ in range(count):
        start = place + _LENGTH_BYTES
        place = start + int.from_bytes(body[place:start], "little")
        raw = body[start:place]
        if not raw or place > len(body) or not raw.isascii():
            raise TokenFault("a capability token is empty, cut short or not ASCII")
        token = raw.decode()
        if tokens and token <= tokens[-1]:
            raise TokenFault(f"capability token {token!r} does not rise above the one before it")
        tokens.append(token)
    if place != len(body):
        raise TokenFault(f"{len(body) - place} bytes follow the last capability token")
    return tuple(tokens)
