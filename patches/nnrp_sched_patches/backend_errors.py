"""vLLM's refusals and failures as `BackendError`, with the status its own HTTP server answers."""

import re
from typing import Any

from nnrp_sched.errors import BackendError

_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+")


def from_error_object(error: dict[str, Any]) -> BackendError:
    """From the inside of OpenAI's `{"error": {...}}`, as it stands in a stream."""
    code = error.get("code")
    return BackendError(
        str(error.get("message") or "the engine failed without a message"),
        status=code if isinstance(code, int) else 500,
        error_type=_text(error.get("type")),
        parameter=_text(error.get("param")),
    )


def from_exception(chat: Any, error: Exception) -> BackendError:
    """From what vLLM's chat serving raised, through its own `create_error_response`."""
    return from_error_object(chat.create_error_response(error).error.model_dump())


def from_validation_error(error: Any) -> BackendError:
    """From a pydantic ValidationError of the request class: status 400, the first fault named.

    vLLM's validators raise errors of their own that know the parameter; for the others it is the
    path in the body, without the names that pydantic gives its union branches.
    """
    faults: list[dict[str, Any]] = error.errors(include_url=False, include_input=False)
    first: dict[str, Any] = faults[0] if faults else {"msg": str(error)}
    location: list[str] = [str(part) for part in first.get("loc", ())]
    path = ".".join(part for part in location if _FIELD_NAME.fullmatch(part))
    cause = first.get("ctx", {}).get("error")
    parameter = _text(getattr(cause, "parameter", None)) or path or None
    message = str(first.get("msg", error))
    return BackendError(
        f"{path}: {message}" if path else message,
        status=400,
        error_type="Bad Request",
        parameter=parameter,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)
