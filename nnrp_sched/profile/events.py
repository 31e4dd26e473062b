"""The events of `openai-compatible/1` and their JSON (seed 003, sections 7 and 8).

Every event travels as one compact UTF-8 JSON object: non-terminal ones as a PARTIAL_RESULT body,
terminal ones as the document of a RESULT_PUSH. Unknown fields of a known event are ignored.
"""

import re
import reprlib
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from nnrp_sched.errors import ProfileStreamError
from nnrp_sched.profile.json_values import JsonObject, is_array, is_object
from nnrp_sched.profile.scheduling import AbortReceipt, QueueSnapshot

Index = Annotated[int, Meta(ge=0)]
Identity = Annotated[str, Meta(min_length=1)]

# gc=False: an event holds plain JSON values, which cannot form cycles, and one is made per token.


class ErrorObject(Struct, frozen=True, gc=False):
    """An OpenAI error object (seed 003, section 10)."""

    type: Identity
    code: Identity
    message: Identity


class OutputTextDelta(
    Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    tag_field="type",
    tag="response.output_text.delta",
):
    """A piece of output text; `index` is the choice.

    `delta` is empty when the event only carries its `openai_chunk` (reasoning, log probabilities
    and whatever else the plain events cannot say).
    """

    index: Index
    delta: str
    openai_chunk: JsonObject | None = None


class ToolCallStarted(
    Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    tag_field="type",
    tag="response.tool_call.started",
):
    """A tool call begins; `index` is its position among the choice's tool calls."""

    index: Index
    item_id: Identity
    call_id: Identity
    name: Identity
    openai_chunk: JsonObject | None = None


class ToolCallDelta(
    Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    tag_field="type",
    tag="response.tool_call.delta",
):
    """A piece of a tool call's JSON arguments."""

    index: Index
    item_id: Identity
    call_id: Identity
    arguments_delta: str
    openai_chunk: JsonObject | None = None


class ToolCallCompleted(
    Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    tag_field="type",
    tag="response.tool_call.completed",
):
    """A tool call is complete; `arguments` is the concatenation of its deltas."""

    index: Index
    item_id: Identity
    call_id: Identity
    name: Identity
    arguments: str
    openai_chunk: JsonObject | None = None


class ToolCallError(
    Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    tag_field="type",
    tag="response.tool_call.error",
):
    """A tool call ends without being complete; the operation itself goes on to its own terminal."""

    index: Index
    item_id: Identity
    call_id: Identity
    error: ErrorObject
    openai_chunk: JsonObject | None = None


class Usage(
    Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="response.usage"
):
    """The token counts, in both spellings: input/output_tokens and prompt/completion_tokens."""

    usage: JsonObject
    openai_chunk: JsonObject | None = None


class Completed(
    Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="response.completed"
):
    """The final chat.completion. Terminal."""

    body: JsonObject
    openai_chunk: JsonObject | None = None


class Error(
    Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="response.error"
):
    """The operation failed. Terminal."""

    error: ErrorObject
    diagnostics: JsonObject | None = None


class Cancelled(Struct, frozen=True, gc=False, tag_field="type", tag="response.cancelled"):
    """The operation was cancelled. Terminal."""

    reason: str


class Diagnostics(Struct, frozen=True, gc=False, tag_field="type", tag="response.diagnostics"):
    """Facts about the serving side, of a declared non-critical extension (wire digest 4.2)."""

    diagnostics: JsonObject


class QueueChanged(Struct, frozen=True, gc=False, tag_field="type", tag="response.queue"):
    """The engine's queue looks different now; only `queue.watch` of the control schema sends it."""

    snapshot: QueueSnapshot


class ToolOutputDelta(
    Struct, frozen=True, gc=False, tag_field="type", tag="response.tool_output.delta"
):
    """A piece of what a tool puts out; only `tools.call` of the tools schema sends it."""

    delta: str


class ToolStopped(Struct, frozen=True, gc=False, tag_field="type", tag="response.tool_stopped"):
    """The last event of a `tools.call` that was cancelled: what became of the tool."""

    receipt: AbortReceipt


class Unknown(Struct, frozen=True, gc=False):
    """A well-formed event of a type this version does not know; readers ignore it."""

    type: str
    fields: JsonObject
    """Everything but the type."""


KnownEvent = (
    OutputTextDelta
    | ToolCallStarted
    | ToolCallDelta
    | ToolCallCompleted
    | ToolCallError
    | Usage
    | Completed
    | Error
    | Cancelled
    | Diagnostics
    | QueueChanged
    | ToolOutputDelta
    | ToolStopped
)
Event = KnownEvent | Unknown
ToolCallEvent = ToolCallStarted | ToolCallDelta | ToolCallCompleted | ToolCallError

TERMINAL: Final[frozenset[type[Event]]] = frozenset({Completed, Error, Cancelled})
"""The event types that end an operation; they travel in a RESULT_PUSH only (wire digest P6)."""

_KNOWN_TYPES: Final = frozenset(str(kind.__struct_config__.tag) for kind in KnownEvent.__args__)
_CLOSED_FAMILIES: Final = ("response.tool_call.", "response.output_text.")
"""Families in which an unknown type is a fault: skipping one would lose content."""

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(KnownEvent)
_object_decoder: Final = msgspec.json.Decoder(JsonObject)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def encode_event(event: Event) -> bytes:
    """Encode an event as the compact UTF-8 JSON that goes on the wire.

    A lone surrogate, which UTF-8 cannot hold, becomes U+FFFD.
    """
    try:
        if type(event) is Unknown:
            return _encoder.encode({"type": event.type, **event.fields})
        return _encoder.encode(event)
    except UnicodeEncodeError:
        # JSON escapes let an engine send half of a surrogate pair; that must not end an operation.
        fields = msgspec.to_builtins(event)
        if type(event) is Unknown:
            fields = {"type": event.type, **event.fields}
        return _encoder.encode(_without_surrogates(fields))


def _without_surrogates(value: Any) -> Any:
    # Each half is replaced by itself, so that pieces of text still add up to the whole.
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if is_object(value):
        return {_without_surrogates(key): _without_surrogates(value[key]) for key in value}
    if is_array(value):
        return [_without_surrogates(member) for member in value]
    return value


def decode_event(document: bytes) -> Event:
    """Decode one event.

    Raises `ProfileStreamError` naming the fault: not one UTF-8 JSON object, a known type with
    foreign fields, or an unknown type in the text or tool-call family (wire digest 4.2, P4).
    """
    try:
        return _decoder.decode(document)
    except (msgspec.DecodeError, RecursionError) as fault:
        return _decode_unknown(document, fault)


def _decode_unknown(document: bytes, fault: Exception) -> Unknown:
    """Tell an event of an unknown type from a fault; only what did not decode comes here."""
    try:
        fields = _object_decoder.decode(document)
    except msgspec.ValidationError as malformed:
        raise ProfileStreamError(f"an event must be a JSON object: {malformed}") from fault
    except (msgspec.DecodeError, RecursionError) as malformed:
        raise ProfileStreamError(f"an event must be UTF-8 JSON: {malformed}") from fault
    event_type = fields.pop("type", None)
    if not isinstance(event_type, str) or not event_type:
        raise ProfileStreamError("an event must have a `type` that is a non-empty string")
    if event_type in _KNOWN_TYPES:
        raise ProfileStreamError(f"malformed {event_type}: {fault}") from fault
    if event_type.startswith(_CLOSED_FAMILIES):
        raise ProfileStreamError(f"unknown event type {reprlib.repr(event_type)}") from fault
    return Unknown(event_type, fields)
