"""`nnrp.workflow`, `nnrp.priority` and `nnrp.idempotency_key` in an envelope."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.errors import ProfileError
from nnrp_sched.profile.workflow import (
    MAX_KEY,
    MAX_NAME,
    PRIORITY_RANGE,
    Workflow,
    parse_idempotency_key,
    parse_priority,
    parse_workflow,
)


def test_a_workflow_is_read_whole() -> None:
    members = {
        "program": "p",
        "agent": "a",
        "parent": "main",
        "step": 4,
        "role": "explorer",
        "deadline_ms": 900,
        "budget_tokens": 2000,
    }
    assert parse_workflow({"workflow": members}) == Workflow(
        "p", "a", "main", 4, "explorer", 900, 2000
    )
    assert parse_workflow({"workflow": {"step": "plan"}}).step == "plan"


@pytest.mark.parametrize("extensions", [{}, {"workflow": None}, {"workflow": {}}, {"other": 1}])
def test_without_one_nothing_is_known(extensions: dict[str, Any]) -> None:
    assert parse_workflow(extensions) == Workflow()
    assert parse_priority(extensions) is None


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ("p", "workflow"),
        ([], "workflow"),
        ({"program": 1}, "program"),
        ({"agent": ""}, "agent"),
        ({"parent": "x" * (MAX_NAME + 1)}, "parent"),
        ({"step": 1.5}, "step"),
        ({"deadline_ms": -1}, "deadline_ms"),
        ({"budget_tokens": True}, "budget_tokens"),
    ],
)
def test_an_ill_typed_member_is_named(members: Any, named: str) -> None:
    with pytest.raises(ProfileError, match=named) as caught:
        parse_workflow({"workflow": members})
    assert caught.value.code == "invalid_nnrp_policy"


@pytest.mark.parametrize("value", [True, "1", 1.5, PRIORITY_RANGE[0] - 1, PRIORITY_RANGE[1] + 1])
def test_a_priority_is_a_32_bit_integer(value: Any) -> None:
    with pytest.raises(ProfileError, match="priority") as caught:
        parse_priority({"priority": value})
    assert caught.value.code == "invalid_nnrp_policy"


@pytest.mark.parametrize("key", ["k", "k" * MAX_KEY, "ключ 鍵 \0"])
def test_a_key_is_any_text_of_1_to_256_characters(key: str) -> None:
    assert parse_idempotency_key({"idempotency_key": key}) == key
    assert parse_idempotency_key({}) is None


@pytest.mark.parametrize("value", ["", "k" * (MAX_KEY + 1), None, 1, True, ["k"], {"k": "k"}])
def test_what_is_no_key_is_refused_and_not_passed_over(value: Any) -> None:
    with pytest.raises(ProfileError, match=r"nnrp\.idempotency_key") as caught:
        parse_idempotency_key({"idempotency_key": value})
    assert caught.value.code == "invalid_nnrp_policy"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = st.sampled_from(["program", "agent", "parent", "step", "deadline_ms"])


@given(JSON | st.dictionaries(MEMBERS, JSON), JSON, JSON)
def test_no_value_raises_anything_else(workflow: Any, priority: Any, key: Any) -> None:
    for parse, name, value in (
        (parse_workflow, "workflow", workflow),
        (parse_priority, "priority", priority),
        (parse_idempotency_key, "idempotency_key", key),
    ):
        try:
            parse({name: value})
        except ProfileError as error:
            assert error.code == "invalid_nnrp_policy"
