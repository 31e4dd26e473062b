"""Errors, as an OpenAI client sees them."""

import json

import pytest

from nnrp_sched.errors import ConnectionLost, NnrpSchedError, PeerUnreachable
from nnrp_sched.profile import PROFILE_ERRORS, profile_error
from nnrp_sched_orchestrator.embed.records import Unanswered
from nnrp_sched_orchestrator.embed.refusals import refusal_of
from nnrp_sched_orchestrator.errors import (
    BudgetExceeded,
    DeadlineExceeded,
    EndpointsUnavailable,
    QueueFull,
    StreamAbandoned,
    StreamCancelled,
)
from nnrp_sched_orchestrator.records import Receipt

RECEIPT = Receipt("p/a#1", reason="enough")


@pytest.mark.parametrize("code", PROFILE_ERRORS)
def test_every_error_of_the_profile_keeps_its_code_type_and_message(code: str) -> None:
    error = profile_error(code, "what happened")
    refusal = refusal_of(error)
    assert refusal.document()["error"] == {
        "message": "what happened",
        "type": PROFILE_ERRORS[code][0],
        "param": None,
        "code": code,
    }
    blamed = range(400, 500) if refusal.error_type == "invalid_request_error" else range(500, 600)
    assert refusal.status in blamed


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (profile_error("unsupported_model", ""), 404, "unsupported_model", None),
        (profile_error("invalid_body", ""), 400, "invalid_body", None),
        (profile_error("backend_overload", ""), 503, "backend_overload", None),
        (profile_error("request_timeout", ""), 504, "request_timeout", "false"),
        (profile_error("tool_call_incomplete", ""), 500, "tool_call_incomplete", "false"),
        (BudgetExceeded("tokens", "p", 5, {}), 429, "budget_exceeded", "false"),
        (DeadlineExceeded("p", 5), 504, "deadline_exceeded", "false"),
        (QueueFull(5), 503, "queue_full", None),
        (StreamCancelled(RECEIPT), 499, "cancelled", "false"),
        (StreamAbandoned(RECEIPT, 30), 499, "abandoned", "false"),
        (ConnectionLost("gone"), 502, "operation_lost", "false"),
        (NnrpSchedError("?"), 500, "NnrpSchedError", None),
    ],
)
def test_each_kind_has_its_status_and_says_whether_to_try_again(
    error: NnrpSchedError, status: int, code: str, retry: str | None
) -> None:
    reply = refusal_of(error).reply()
    assert reply.status == status
    assert reply.headers.get("x-should-retry") == retry
    assert isinstance(reply.content, bytes)
    assert json.loads(reply.content)["error"]["code"] == code


def test_what_had_output_already_is_not_to_be_tried_again() -> None:
    error = profile_error("backend_error", "the engine failed")
    assert "x-should-retry" not in refusal_of(error).reply().headers
    assert refusal_of(error, produced=True).reply().headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PeerUnreachable("gone"), "ConnectError"),
        (EndpointsUnavailable(1, {}), "ConnectError"),
    ],
)
def test_a_connection_that_is_not_there_is_an_error_of_the_http_library(
    error: NnrpSchedError, kind: str
) -> None:
    with pytest.raises(Unanswered) as raised:
        refusal_of(error)
    assert raised.value.kind == kind
