"""The envelope of `nnrp-sched-control/1`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import ProfileError
from nnrp_sched.profile import CONTROL_SCHEMA, build_control, build_envelope, parse_control

OPERATIONS = frozenset({"capabilities.get"})


def test_what_was_built_is_read_again() -> None:
    request = parse_control(build_control("capabilities.get", {"a": 1}), OPERATIONS)
    assert request is not None
    assert (request.operation, request.body) == ("capabilities.get", {"a": 1})


def test_a_chat_that_only_mentions_the_schema_is_none() -> None:
    chat = build_envelope({"model": "m", "messages": [{"content": CONTROL_SCHEMA}]})
    assert parse_control(chat, OPERATIONS) is None


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (build_control("engine.explode", {}), "unsupported_operation"),
        (b'{"schema_version":"nnrp-sched-control/1"}', "invalid_request_envelope"),
        (
            b'{"schema_version":"nnrp-sched-control/1","operation":"capabilities.get","body":[]}',
            "invalid_request_envelope",
        ),
    ],
)
def test_a_malformed_request_is_refused_with_its_code(document: bytes, code: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_control(document, OPERATIONS)
    assert caught.value.code == code


@given(st.binary() | st.text().map(str.encode))
def test_no_bytes_raise_anything_else(document: bytes) -> None:
    try:
        assert parse_control(document, OPERATIONS) is None
    except ProfileError as error:
        assert error.code in ("unsupported_operation", "invalid_request_envelope")
