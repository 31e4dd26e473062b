"""Error codes: one table, and engine failures told by their status number alone."""

import pytest

from nnrp_sched.errors import BackendError
from nnrp_sched.profile import (
    PROFILE_ERRORS,
    Error,
    ErrorObject,
    backend_profile_error,
    decode_event,
    encode_event,
    error_document,
    error_object,
    profile_error,
)


@pytest.mark.parametrize("code", PROFILE_ERRORS)
def test_every_code_makes_a_document_that_survives_the_wire(code: str) -> None:
    error = profile_error(code, "what happened")
    assert (error.error_type, error.status) == PROFILE_ERRORS[code]
    assert error.diagnostics is None
    document = error_document(error)
    assert decode_event(encode_event(document)) == document


def test_a_code_outside_the_table_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        profile_error("made_up", "x")


@pytest.mark.parametrize(
    ("status", "code", "wire_status"),
    [
        (404, "unsupported_model", 500),
        (400, "invalid_backend_request", 500),
        (422, "invalid_backend_request", 500),
        (429, "backend_overload", 503),
        (503, "backend_overload", 503),
        (500, "backend_error", 500),
        (501, "backend_error", 500),
        (418, "backend_error", 500),
    ],
)
def test_the_status_number_decides_and_no_word_in_the_text(
    status: int, code: str, wire_status: int
) -> None:
    text = "scheduler full: reject, too many requests, rate limit, abort, overload"
    error = backend_profile_error(BackendError(text, status=status))
    assert (error.code, error.status, error.message) == (code, wire_status, text)


def test_the_diagnostics_say_what_the_engine_said() -> None:
    error = backend_profile_error(
        BackendError("no", status=404, error_type="NotFoundError", parameter="model")
    )
    assert error.diagnostics == {
        "backend_error_family": "NotFoundError",
        "vllm_error_type": "NotFoundError",
        "vllm_status_code": 404,
        "vllm_parameter": "model",
    }
    unnamed = backend_profile_error(BackendError("no", status=500))
    assert unnamed.diagnostics == {"backend_error_family": "BackendError", "vllm_status_code": 500}


def test_an_empty_message_is_replaced_because_the_profile_forbids_it() -> None:
    document = error_document(backend_profile_error(BackendError("", status=500)))
    assert document.error == ErrorObject("server_error", "backend_error", "backend_error")
    assert isinstance(decode_event(encode_event(document)), Error)
    assert error_object("tool_call_incomplete", "").message == "tool_call_incomplete"
