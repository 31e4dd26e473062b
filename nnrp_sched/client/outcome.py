"""How a chat ended: the one outcome behind the messages that say so (wire digest 6, 4 and 5)."""

from typing import Any, Literal

from msgspec import Struct

from nnrp_sched.client.inbox import Terminal
from nnrp_sched.errors import ConnectionLost, NnrpSchedError, ProfileStreamError
from nnrp_sched.profile import Cancelled, Completed, Error, ErrorObject, Event, decode_event
from nnrp_sched.wire import DropReason, OperationFailed, ResultDropped, ResultReceived

Status = Literal["completed", "error", "cancelled", "dropped"]


class Outcome(Struct, frozen=True):
    """How a chat ended, whatever message said so."""

    status: Status
    text: str
    """The output text of choice 0 as far as it came, also when the chat was cut short."""
    body: dict[str, Any] | None = None
    """The chat.completion, when completed with one."""
    usage: dict[str, Any] | None = None
    """The token counts, when the server sent them."""
    error: ErrorObject | None = None
    """What went wrong, with status `error`."""
    reason: str | None = None
    """Why, with status `cancelled` or `dropped`."""
    retry_after_ms: int | None = None
    """When another try may succeed, where a busy server told with status `error`."""


def outcome_of(
    terminal: Terminal, text: str, usage: dict[str, Any] | None, retry_after_ms: int | None = None
) -> tuple[Outcome, Event | None]:
    """The outcome that a terminal stands for, and its document's event when there is one.

    `text`, `usage` and `retry_after_ms` are what came before it. Raises what ended the session or
    the connection, `ConnectionLost` for an operation that the server failed, and
    `ProfileStreamError` for a document that cannot end an operation.
    """
    match terminal:
        case NnrpSchedError():
            raise terminal
        case ResultDropped(reason=reason, diagnostic=diagnostic):
            cancelled = reason in (None, DropReason.PEER_CANCELLED)
            status: Status = "cancelled" if cancelled else "dropped"
            why = diagnostic or (reason.name.lower() if reason is not None else "dropped")
            return Outcome(status, text=text, usage=usage, reason=why), None
        case OperationFailed(code=code, diagnostic=diagnostic):
            raise ConnectionLost(f"the server failed the operation: {diagnostic} (code {code})")
        case ResultReceived():
            return _of_result(terminal, text, usage, retry_after_ms)


def _of_result(
    result: ResultReceived,
    text: str,
    usage: dict[str, Any] | None,
    retry_after_ms: int | None,
) -> tuple[Outcome, Event | None]:
    if result.fault is not None:
        raise ProfileStreamError(result.fault)
    if result.document is None:
        return Outcome("completed", text=text, usage=usage), None
    event = decode_event(result.document)
    match event:
        case Completed(body=body):
            counts = usage or body.get("usage")
            whole = text or _text_of(body)
            return Outcome("completed", text=whole, body=body, usage=counts), event
        case Error(error=error):
            return Outcome(
                "error", text=text, usage=usage, error=error, retry_after_ms=retry_after_ms
            ), event
        case Cancelled(reason=reason):
            return Outcome("cancelled", text=text, usage=usage, reason=reason), event
        case _:
            raise ProfileStreamError(f"{type(event).__name__} cannot end an operation")


def _text_of(body: dict[str, Any]) -> str:
    """The text of choice 0 of a chat.completion; empty when it has none."""
    try:
        return str(body["choices"][0]["message"]["content"] or "")
    except (KeyError, IndexError, TypeError):
        return ""
