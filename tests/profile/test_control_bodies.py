"""The bodies of control requests."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nnrp_sched.errors import ProfileError
from nnrp_sched.profile.control_bodies import (
    MAX_IDS,
    AbortBody,
    Nothing,
    ProgramBody,
    ReprioritizeBody,
    WatchBody,
    parse_body,
)

KINDS: list[type[Any]] = [AbortBody, Nothing, ProgramBody, ReprioritizeBody, WatchBody]


@pytest.mark.parametrize(
    ("members", "by", "names"),
    [
        ({"ids": ["1.1", "2.3"]}, "id", ["1.1", "2.3"]),
        ({"program": "p"}, "program", ["p"]),
        ({"agent": "a", "ids": None}, "agent", ["a"]),
        ({"ids": ["x"] * MAX_IDS}, "id", ["x"] * MAX_IDS),
    ],
)
def test_an_abort_names_what_it_is_about(
    members: dict[str, Any], by: str, names: list[str]
) -> None:
    body = parse_body(members, AbortBody)
    assert (body.by, body.names) == (by, names)


def test_a_watch_has_a_pace_by_itself() -> None:
    assert parse_body({}, WatchBody).per_second == 10.0
    assert parse_body({"per_second": 2}, WatchBody).per_second == 2.0


def test_operations_without_arguments_ignore_what_they_get() -> None:
    assert parse_body({"anything": 1}, Nothing) == Nothing()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["ids", "program", "agent", "id", "priority", "per_second"])


@pytest.mark.parametrize("kind", KINDS)
@given(members=st.dictionaries(NAMES | st.text(), JSON))
@example(members={"per_second": 10**400})
@example(members={"per_second": float("inf")})
@example(members={"id": "x", "priority": 10**400})
def test_no_body_raises_anything_but_a_refusal(kind: type[Any], members: dict[str, Any]) -> None:
    try:
        body = parse_body(members, kind)
    except ProfileError as error:
        assert error.code == "invalid_body"
    else:
        assert isinstance(body, kind)
