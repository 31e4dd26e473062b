"""The request envelope: every check, its code, and the order of the checks."""

import json
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import ProfileError
from nnrp_sched.profile import (
    CHAT_COMPLETIONS,
    MAX_DOCUMENT_BYTES,
    PROFILE_ERRORS,
    SCHEMA_VERSION,
    RequestEnvelope,
    build_envelope,
    parse_envelope,
)
from nnrp_sched.profile.envelope import exceeds_depth
from nnrp_sched.profile.json_values import is_array, is_object

OPERATIONS = frozenset({CHAT_COMPLETIONS})
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
VALID: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "operation": CHAT_COMPLETIONS,
    "body": BODY,
}


def refused(document: bytes) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        parse_envelope(document, OPERATIONS)
    return caught.value


def envelope(**members: Any) -> bytes:
    return json.dumps({**VALID, **members}).encode()


def test_a_minimal_envelope_has_no_policy() -> None:
    parsed = parse_envelope(envelope(), OPERATIONS)
    assert parsed == RequestEnvelope(operation=CHAT_COMPLETIONS, body=BODY)
    assert (parsed.request_id, parsed.timeout_ms, parsed.diagnostics) == (None, None, False)


def test_the_body_passes_as_it_came_and_nothing_of_nnrp_enters_it() -> None:
    body: dict[str, Any] = {
        **BODY,
        "temperature": 0.0,
        "tools": [],
        "metadata": {"a": None},
        "seed": 2**70,
    }
    parsed = parse_envelope(envelope(body=body, nnrp={"timeout_ms": 5}), OPERATIONS)
    assert parsed.body == body
    assert isinstance(parsed.body["temperature"], float)


def test_unknown_policy_keys_are_kept_as_extensions() -> None:
    nnrp = {"timeout_ms": 5, "diagnostics": True, "workflow": {"agent": "a"}, "x": 1}
    parsed = parse_envelope(envelope(nnrp=nnrp), OPERATIONS)
    assert parsed.timeout_ms == 5
    assert parsed.diagnostics is True
    assert parsed.extensions == {"workflow": {"agent": "a"}, "x": 1}


@pytest.mark.parametrize(
    ("members", "code", "named"),
    [
        ({"runtime_control": 1}, "invalid_request_envelope", "runtime_control"),
        ({"schema_version": "other"}, "unsupported_schema_version", "'other'"),
        ({"schema_version": None}, "unsupported_schema_version", "None"),
        ({"operation": "responses.create"}, "unsupported_operation", "'responses.create'"),
        ({"operation": ["x"]}, "unsupported_operation", "['x']"),
        ({"body": []}, "invalid_body", "[]"),
        ({"body": None}, "invalid_body", "None"),
        ({"body": {**BODY, "model": ""}}, "missing_model", "''"),
        ({"body": {**BODY, "model": 7}}, "missing_model", "7"),
        ({"body": {"messages": [1]}}, "missing_model", "missing"),
        ({"body": {"model": "m"}}, "missing_messages", "missing"),
        ({"body": {**BODY, "messages": []}}, "missing_messages", "[]"),
        ({"body": {**BODY, "messages": "hi"}}, "missing_messages", "'hi'"),
        ({"request_id": 7}, "invalid_request_id", "7"),
        ({"request_id": None}, "invalid_request_id", "None"),
        ({"nnrp": []}, "invalid_nnrp_policy", "`nnrp`"),
        ({"nnrp": None}, "invalid_nnrp_policy", "`nnrp`"),
        ({"nnrp": {"timeout_ms": -1}}, "invalid_nnrp_policy", "timeout_ms"),
        ({"nnrp": {"timeout_ms": True}}, "invalid_nnrp_policy", "timeout_ms"),
        ({"nnrp": {"timeout_ms": 1.0}}, "invalid_nnrp_policy", "timeout_ms"),
        ({"nnrp": {"timeout_ms": "5"}}, "invalid_nnrp_policy", "timeout_ms"),
        ({"nnrp": {"timeout_ms": None}}, "invalid_nnrp_policy", "timeout_ms"),
        ({"nnrp": {"timeout_ms": 2**53 + 1}}, "invalid_nnrp_policy", "timeout_ms"),
        ({"nnrp": {"diagnostics": "yes"}}, "invalid_nnrp_policy", "diagnostics"),
        ({"nnrp": {"diagnostics": None}}, "invalid_nnrp_policy", "diagnostics"),
    ],
)
def test_a_fault_has_its_code_and_the_message_names_it(
    members: dict[str, Any], code: str, named: str
) -> None:
    error = refused(envelope(**members))
    assert error.code == code
    assert named in error.message
    assert (error.error_type, error.status) == PROFILE_ERRORS[code]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("schema_version", "unsupported_schema_version"),
        ("operation", "unsupported_operation"),
        ("body", "invalid_body"),
    ],
)
def test_a_missing_required_member_is_refused(name: str, code: str) -> None:
    members = {key: value for key, value in VALID.items() if key != name}
    error = refused(json.dumps(members).encode())
    assert (error.code, "missing" in error.message) == (code, True)


def test_of_many_faults_the_first_in_the_order_of_the_checks_is_told() -> None:
    faults: list[tuple[str, dict[str, Any]]] = [
        ("invalid_request_envelope", {"extra": 1}),
        ("unsupported_schema_version", {"schema_version": 1}),
        ("unsupported_operation", {"operation": "models.list"}),
        ("invalid_body", {"body": 1}),
        ("missing_model", {"body": {}}),
        ("missing_messages", {"body": {"model": "m"}}),
        ("invalid_request_id", {"request_id": 1}),
        ("invalid_nnrp_policy", {"nnrp": {"timeout_ms": -1, "diagnostics": 1}}),
    ]
    for first in range(len(faults)):
        members: dict[str, Any] = {}
        for _, fault in reversed(faults[first:]):
            members.update(fault)
        assert refused(envelope(**members)).code == faults[first][0]


def test_a_timeout_of_zero_is_no_timeout() -> None:
    assert parse_envelope(envelope(nnrp={"timeout_ms": 0}), OPERATIONS).timeout_ms is None
    longest = parse_envelope(envelope(nnrp={"timeout_ms": 2**53}), OPERATIONS)
    assert longest.timeout_ms == 2**53


def test_an_operation_without_body_checks_takes_any_object() -> None:
    parsed = parse_envelope(envelope(operation="models.list", body={}), frozenset({"models.list"}))
    assert parsed.body == {}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (b"", "truncated"),
        (b"\xef\xbb\xbf" + envelope(), "byte order mark"),
        (envelope() + b" x", "trailing"),
        (envelope() + envelope(), "trailing"),
        (envelope()[:-1], "truncated"),
        (b'{"schema_version":"\xff"}', "UTF-8"),
        (b'{"body":{"temperature":NaN}}', "malformed"),
        (b'{"body":{"temperature":Infinity}}', "malformed"),
        (b'{"body":{"temperature":1e999}}', "out of range"),
        (b"[]", "no object"),
        (b'"text"', "no object"),
        (b"null", "no object"),
        (b"data: {}\n\n", "malformed"),
        (b" " * (MAX_DOCUMENT_BYTES + 1), str(MAX_DOCUMENT_BYTES)),
        (b'{"body":' + b"[" * 64 + b"]" * 64 + b"}", "deeper than 64"),
        (b"[" * 1_000_000, "deeper than 64"),
    ],
    ids=lambda value: value[:24].decode("latin-1") if isinstance(value, bytes) else value,
)
def test_a_document_that_is_no_json_object_is_an_invalid_submit_body(
    document: bytes, named: str
) -> None:
    error = refused(document)
    assert error.code == "invalid_submit_body"
    assert named in error.message


def test_of_a_repeated_key_the_last_one_counts() -> None:
    document = envelope()[:-1] + b',"request_id":"a","request_id":"b"}'
    assert parse_envelope(document, OPERATIONS).request_id == "b"


def test_64_levels_are_accepted_and_brackets_in_strings_do_not_count() -> None:
    nested: Any = "[" * 500 + '\\"{{' + "\\"
    for _ in range(61):
        nested = [nested]
    body: dict[str, Any] = {**BODY, "metadata": nested, "other": [{}] * 100}
    # Envelope and body are two levels, the lists are 61, "other" reaches four.
    assert parse_envelope(envelope(body=body), OPERATIONS).body == body
    assert refused(envelope(body={**body, "metadata": [[nested]]})).code == "invalid_submit_body"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def depth(value: object) -> int:
    if is_object(value):
        return 1 + max(map(depth, value.values()), default=0)
    if is_array(value):
        return 1 + max(map(depth, value), default=0)
    return 0


@given(JSON, st.integers(1, 6), st.booleans())
def test_the_depth_check_agrees_with_the_decoded_value(value: Any, limit: int, raw: bool) -> None:
    document = json.dumps(value, ensure_ascii=not raw).encode()
    assert exceeds_depth(document, limit) == (depth(value) > limit)


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


@pytest.mark.parametrize(
    "document",
    [
        b"[" * 4_000_000,
        b"[" * 3_000_000 + b"]" * 1_000_000,
        (b"[" * 64 + b"]" * 64) * 32_000,
        (b"[" * 100) * 30_000 + b"]" * 1_000_000,
    ],
    ids=["open only", "one hill", "many hills", "stairs"],
)
def test_the_depth_check_is_linear_in_a_document_made_to_be_slow(document: bytes) -> None:
    """The server reads every document on its event loop, on which all its peers wait."""
    one_pass = seconds(lambda: max(accumulate(document)))
    assert seconds(lambda: exceeds_depth(document, 64)) < 3 * one_pass


@given(st.binary() | st.text(alphabet='{}[]",:\\ u0a1').map(str.encode))
def test_arbitrary_bytes_raise_nothing_but_a_profile_error(document: bytes) -> None:
    assert refused(document).code in PROFILE_ERRORS


@given(JSON)
def test_arbitrary_json_raises_nothing_but_a_profile_error(value: Any) -> None:
    assert refused(json.dumps(value).encode()).code in PROFILE_ERRORS


@given(st.dictionaries(st.sampled_from([*VALID, "request_id", "nnrp", "x"]), JSON))
def test_an_envelope_with_arbitrary_members_passes_or_raises_a_profile_error(
    members: dict[str, Any],
) -> None:
    try:
        parsed = parse_envelope(envelope(**members), OPERATIONS)
    except ProfileError as error:
        assert error.code in PROFILE_ERRORS
        assert error.message
    else:
        assert parsed.operation == CHAT_COMPLETIONS


@given(st.data())
def test_a_damaged_envelope_passes_or_raises_a_profile_error(data: st.DataObject) -> None:
    document = bytearray(envelope(request_id="r", nnrp={"timeout_ms": 1, "diagnostics": True}))
    for _ in range(data.draw(st.integers(1, 4))):
        document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed = parse_envelope(bytes(document), OPERATIONS)
    except ProfileError as error:
        assert error.code in PROFILE_ERRORS
    else:
        assert parsed.body["messages"]


@given(
    st.dictionaries(st.text(), JSON),
    st.none() | st.text(min_size=1),
    st.none() | st.integers(1, 2**53),
    st.none() | st.booleans(),
    st.dictionaries(st.text(), JSON),
)
def test_what_is_built_is_what_is_parsed(
    extra: dict[str, Any],
    request_id: str | None,
    timeout_ms: int | None,
    diagnostics: bool | None,
    extensions: dict[str, Any],
) -> None:
    known = {"timeout_ms", "diagnostics"}
    extensions = {key: value for key, value in extensions.items() if key not in known}
    body = {**extra, **BODY}
    document = build_envelope(
        body,
        request_id=request_id,
        timeout_ms=timeout_ms,
        diagnostics=diagnostics,
        extensions=extensions,
    )
    parsed = parse_envelope(document, OPERATIONS)
    assert parsed == RequestEnvelope(
        CHAT_COMPLETIONS, body, request_id, timeout_ms, bool(diagnostics), extensions
    )
