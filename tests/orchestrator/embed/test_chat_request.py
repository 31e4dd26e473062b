"""What is read out of a client's request."""

import json
from typing import Any

import pytest

from nnrp_sched_orchestrator.embed.chat_request import ChatRequest, chat_request
from nnrp_sched_orchestrator.embed.records import HttpRequest

TRACEPARENT = "00-00000000000000010000000000000002-0000000000000003-01"


def read(body: Any, *, seconds: float | None = None, **headers: str) -> ChatRequest:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    document = body if isinstance(body, bytes) else json.dumps(body).encode()
    return chat_request(HttpRequest("POST", "/v1/chat/completions", named, document, seconds))


def test_a_body_is_taken_as_it_is_but_for_how_it_is_to_be_answered() -> None:
    options = {"include_usage": True}
    request = read({"model": "m", "messages": [], "stream": True, "stream_options": options})
    assert request.stream
    assert request.include_usage
    assert request.model == "m"
    assert request.body == {"model": "m", "messages": [], "stream_options": options}


@pytest.mark.parametrize("body", [{}, {"stream": None}, {"stream": False, "stream_options": None}])
def test_whole_answers_are_the_default(body: dict[str, Any]) -> None:
    request = read(body)
    assert not request.stream
    assert not request.include_usage


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "must be a JSON object"),
        ({"stream": "yes"}, "`stream` must be true or false; it is 'yes'"),
    ],
)
def test_a_body_that_is_none_is_named(body: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read(body)


def test_the_clients_timeout_is_its_own_before_what_its_header_says() -> None:
    assert read({}, seconds=2.0, x_stainless_read_timeout="600").read_seconds == 2.0
    assert read({}, x_stainless_read_timeout="600.0").read_seconds == 600.0
    assert read({}, x_stainless_read_timeout="0").read_seconds is None
    assert read({}).read_seconds is None
    with pytest.raises(ValueError, match="'soon' is no number of seconds"):
        read({}, x_stainless_read_timeout="soon")


def test_a_traceparent_counts_when_it_is_one() -> None:
    assert read({}, traceparent=TRACEPARENT).traceparent == TRACEPARENT
    assert read({}, traceparent="ff-nonsense").traceparent is None


def test_requests_for_the_same_have_the_same_fingerprint() -> None:
    assert read({"seed": 1}).fingerprint == read({"seed": 1}, traceparent=TRACEPARENT).fingerprint
    assert read({"seed": 1}).fingerprint != read({"seed": 2}).fingerprint


def test_an_idempotency_key_has_bounds() -> None:
    assert read({}, idempotency_key="k" * 256).key == "k" * 256
    for key in ("", "k" * 257):
        with pytest.raises(ValueError, match="from 1 to 256 characters"):
            read({}, idempotency_key=key)
