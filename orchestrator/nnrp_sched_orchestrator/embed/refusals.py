"""Which HTTP status and OpenAI error body stands for what went wrong. Pure.

The codes are those of the profile (seed 003, section 10). Clients of `openai` try 408, 409, 429 and
5xx again unless `x-should-retry` says otherwise (orchestration anchors, 2c.4).
"""

from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nnrp_sched.errors import (
    ConnectionLost,
    NnrpSchedError,
    PeerUnreachable,
    ProfileError,
    ProfileStreamError,
    SessionRejected,
)
from nnrp_sched_orchestrator.embed.records import HttpReply, Unanswered
from nnrp_sched_orchestrator.errors import (
    AgentEnded,
    BudgetExceeded,
    DeadlineExceeded,
    EndpointsUnavailable,
    QueueFull,
    StreamAbandoned,
    StreamCancelled,
    TooManyStreams,
)

CLIENT_CLOSED_REQUEST: Final = 499
"""The status that web servers log for a request whose client has gone; no client retries it."""

_STATUS_BY_CODE: Final = MappingProxyType(
    {
        "unsupported_model": 404,
        "unsupported_operation": 404,
        "duplicate_operation_id": 409,
        "backend_overload": 503,
        "scheduler_rejected": 503,
        "adapter_operation_limit": 503,
        "request_timeout": 504,
    }
)
"""Of the other codes, those that blame the request are 400 and the rest 500."""

_FINAL_CODES: Final = frozenset(
    {
        "duplicate_operation_id",
        "request_timeout",
        "tool_call_stream_invalid",
        "invalid_tool_call_stream",
        "tool_call_stream_interrupted",
        "tool_call_incomplete",
    }
)
"""What another try would meet again, after doing the work again."""


class Refusal(Struct, frozen=True):
    """An HTTP status with an OpenAI error object."""

    status: int
    error_type: str
    code: str
    message: str
    retry: bool | None = None
    """What `x-should-retry` tells; None leaves it to the status."""
    retry_after_ms: int | None = None

    def document(self) -> dict[str, Any]:
        """The body, which is also the event of a stream that fails."""
        error = {
            "message": self.message,
            "type": self.error_type,
            "param": None,
            "code": self.code,
        }
        return {"error": error}

    def reply(self) -> HttpReply:
        """The whole reply."""
        headers = {"content-type": "application/json"}
        if self.retry is not None:
            headers["x-should-retry"] = "true" if self.retry else "false"
        if self.retry_after_ms is not None:
            headers["retry-after-ms"] = str(self.retry_after_ms)
        return HttpReply(self.status, headers, msgspec.json.encode(self.document()))


def unknown_path(path: str) -> Refusal:
    """The reply to a path that nothing stands behind."""
    return Refusal(
        404,
        "invalid_request_error",
        "unknown_url",
        f"{path} is not served over NNRP; /v1/chat/completions and /v1/models are",
    )


def unknown_model(name: str) -> Refusal:
    """The reply to a question about a model that no endpoint has."""
    message = f"the model {name!r} does not exist"
    return Refusal(404, "invalid_request_error", "unsupported_model", message)


def bad_request(message: str) -> Refusal:
    """The reply to a request that is none."""
    return Refusal(400, "invalid_request_error", "invalid_body", message)


def cancelled(reason: str) -> Refusal:
    """The reply to a request whose call somebody else has cancelled."""
    why = reason or "no reason given"
    return Refusal(CLIENT_CLOSED_REQUEST, "cancelled", "cancelled", f"cancelled: {why}", False)


def refusal_of(error: NnrpSchedError, *, produced: bool = False) -> Refusal:
    """What stands for an error of a call.

    With `produced` it had output already: another try would do that work again, so the client is
    told to leave it to its user. Raises `Unanswered` when no endpoint is to be had, which clients
    know as an error of their HTTP library.
    """
    match error:
        case ProfileError(code=code, error_type=error_type, message=message):
            blamed = 400 if error_type == "invalid_request_error" else 500
            status = _STATUS_BY_CODE.get(code, blamed)
            retry = False if code in _FINAL_CODES else None
            found = Refusal(status, error_type, code, message, retry)
        case BudgetExceeded():
            # As OpenAI tells that an account has nothing left, which no client retries either.
            found = Refusal(429, "insufficient_quota", "budget_exceeded", str(error), False)
        case DeadlineExceeded():
            found = Refusal(504, "timeout_error", "deadline_exceeded", str(error), False)
        case QueueFull() | TooManyStreams():
            found = Refusal(503, "server_error", "queue_full", str(error))
        case StreamCancelled(receipt=receipt):
            found = cancelled(receipt.reason)
        case AgentEnded():
            found = Refusal(CLIENT_CLOSED_REQUEST, "cancelled", "agent_ended", str(error), False)
        case StreamAbandoned():
            found = Refusal(CLIENT_CLOSED_REQUEST, "cancelled", "abandoned", str(error), False)
        case EndpointsUnavailable() | PeerUnreachable():
            raise Unanswered("ConnectError", str(error)) from error
        case ConnectionLost():
            # The agent has tried again already, as far as that cannot run anything twice.
            found = Refusal(502, "server_error", "operation_lost", str(error), False)
        case SessionRejected():
            found = Refusal(503, "server_error", "session_rejected", str(error))
        case ProfileStreamError():
            found = Refusal(502, "server_error", "invalid_stream", str(error), False)
        case _:
            found = Refusal(500, "server_error", type(error).__name__, str(error))
    if produced and found.retry is None:
        return replace(found, retry=False)
    return found
