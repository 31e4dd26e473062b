"""The error codes of `openai-compatible/1`: which code, which OpenAI error type, which status.

The codes and the stage each belongs to follow the published adapter, so that clients written for
it understand us (adapter facts 5.3). The status is that of the RESULT_PUSH; a client decides by the
event's type and code, never by the status (wire digest 4.4).
"""

from types import MappingProxyType
from typing import Any, Final

from nnrp_sched.errors import BackendError, ProfileError
from nnrp_sched.profile.events import Error, ErrorObject

_INVALID_REQUEST: Final = ("invalid_request_error", 500)
_SERVER: Final = ("server_error", 500)
_OVERLOAD: Final = ("server_error", 503)

PROFILE_ERRORS: Final = MappingProxyType(
    {
        # the packet and its document
        "invalid_submit_body": _INVALID_REQUEST,
        "duplicate_operation_id": _INVALID_REQUEST,
        # the envelope
        "invalid_request_envelope": _INVALID_REQUEST,
        "unsupported_schema_version": _INVALID_REQUEST,
        "unsupported_operation": _INVALID_REQUEST,
        "invalid_body": _INVALID_REQUEST,
        "missing_model": _INVALID_REQUEST,
        "missing_messages": _INVALID_REQUEST,
        "invalid_request_id": _INVALID_REQUEST,
        "invalid_nnrp_policy": _INVALID_REQUEST,
        # the engine
        "unsupported_model": _INVALID_REQUEST,
        "invalid_backend_request": _INVALID_REQUEST,
        "backend_overload": _OVERLOAD,
        "scheduler_rejected": _OVERLOAD,
        "backend_error": _SERVER,
        # the server
        "adapter_operation_limit": _SERVER,
        "adapter_runtime_error": _SERVER,
        "request_timeout": ("timeout_error", 504),
        # tool calls
        "tool_call_stream_invalid": _SERVER,
        "invalid_tool_call_stream": _SERVER,
        "tool_call_stream_interrupted": _SERVER,
        "tool_call_incomplete": _SERVER,
    }
)
"""Code → (OpenAI error type, RESULT_PUSH status)."""

_CODE_BY_BACKEND_STATUS: Final = MappingProxyType(
    {
        404: "unsupported_model",
        400: "invalid_backend_request",
        422: "invalid_backend_request",
        429: "backend_overload",
        503: "backend_overload",
    }
)


def profile_error(code: str, message: str, **diagnostics: Any) -> ProfileError:
    """Make the error of a code in `PROFILE_ERRORS`; a code that is not there is a `KeyError`.

    Diagnostics whose value is None are left out. The profile forbids an empty message, so the code
    stands in for one.
    """
    error_type, status = PROFILE_ERRORS[code]
    known = {name: value for name, value in diagnostics.items() if value is not None}
    return ProfileError(
        code, message or code, error_type=error_type, status=status, diagnostics=known or None
    )


def backend_profile_error(error: BackendError) -> ProfileError:
    """Translate an engine's refusal by its status number alone.

    The text may quote a user's prompt, so no word in it may decide a code (a weakness of the
    published adapter, adapter facts 4.3). `backend_error_family` is the engine's own error type
    when it gave one, else the Python type.
    """
    return profile_error(
        _CODE_BY_BACKEND_STATUS.get(error.status, "backend_error"),
        error.message,
        backend_error_family=error.error_type or type(error).__name__,
        vllm_error_type=error.error_type,
        vllm_status_code=error.status,
        vllm_parameter=error.parameter,
    )


def error_object(code: str, message: str) -> ErrorObject:
    """Make the error object of a code in `PROFILE_ERRORS`, as tool-call errors carry it."""
    return ErrorObject(type=PROFILE_ERRORS[code][0], code=code, message=message or code)


def error_document(error: ProfileError) -> Error:
    """Make the `response.error` that ends an operation with this error."""
    return Error(
        error=ErrorObject(type=error.error_type, code=error.code, message=error.message),
        diagnostics=error.diagnostics,
    )
