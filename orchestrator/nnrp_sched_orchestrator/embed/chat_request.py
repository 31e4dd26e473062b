"""What a client asks for: its body, and what its headers say about the call. Pure."""

import hashlib
import reprlib
from typing import Any

import msgspec
from msgspec import Struct

from nnrp_sched.client.trace import parse_traceparent
from nnrp_sched.profile.json_values import JsonObject, is_object
from nnrp_sched.profile.workflow import MAX_KEY
from nnrp_sched_orchestrator.embed.records import HttpRequest


class ChatRequest(Struct, frozen=True):
    """A request for a chat completion."""

    body: JsonObject
    """The OpenAI chat request, without `stream`."""
    stream: bool
    include_usage: bool
    """Whether a stream is to end with the token counts."""
    read_seconds: float | None
    """How long the client waits for the answer, or for the next piece of a stream."""
    fingerprint: bytes
    """The same for requests that ask for the same."""
    key: str | None
    """The client's own idempotency key."""
    traceparent: str | None
    """The W3C span that the client says is the call's parent."""

    @property
    def model(self) -> str:
        """The model asked for; empty when the body names none."""
        model = self.body.get("model")
        return model if isinstance(model, str) else ""


def chat_request(request: HttpRequest) -> ChatRequest:
    """Read a request for a chat completion.

    Raises `ValueError` saying what is wrong with its body or its headers.
    """
    try:
        body: Any = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise ValueError(f"the body is not JSON: {fault}") from fault
    if not is_object(body):
        raise ValueError("the body must be a JSON object")
    stream = body.pop("stream", None)
    if stream is not None and not isinstance(stream, bool):
        raise ValueError(f"`stream` must be true or false; it is {reprlib.repr(stream)}")
    options = body.get("stream_options")
    return ChatRequest(
        body=body,
        stream=bool(stream),
        include_usage=is_object(options) and options.get("include_usage") is True,
        read_seconds=_read_seconds(request),
        fingerprint=hashlib.sha256(request.body).digest(),
        key=_key(request.headers.get("idempotency-key")),
        traceparent=_traceparent(request.headers.get("traceparent")),
    )


def _read_seconds(request: HttpRequest) -> float | None:
    if request.read_seconds is not None:
        return request.read_seconds
    told = request.headers.get("x-stainless-read-timeout")
    try:
        seconds = None if told is None else float(told)
    except ValueError:
        raise ValueError(f"x-stainless-read-timeout: {told!r} is no number of seconds") from None
    return seconds if seconds is not None and seconds > 0 else None


def _key(key: str | None) -> str | None:
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise ValueError(f"idempotency-key: from 1 to {MAX_KEY} characters are allowed")
    return key


def _traceparent(header: str | None) -> str | None:
    """A valid header; W3C: a malformed one is to be ignored."""
    if header is None:
        return None
    try:
        parse_traceparent(header)
    except ValueError:
        return None
    return header
