"""How what was seen is judged: counts, order, fields, terminal (wire digest 5.1)."""

from typing import Any

import pytest

from nnrp_sched.conformance.judge import differences, judge
from nnrp_sched.conformance.recipe import Expect, ExpectedEvent
from nnrp_sched.conformance.seen import Seen

OUTCOME: dict[str, Any] = {"terminal": "success"}


def seen(*kinds: str, **members: Any) -> Seen:
    return Seen(
        events=[{"type": kind, "number": n} for n, kind in enumerate(kinds)],
        **OUTCOME | members,
    )


def expect(*events: ExpectedEvent, **members: Any) -> Expect:
    return Expect(list(events), **OUTCOME | members)


A, B = ExpectedEvent("a"), ExpectedEvent("b")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (expect(), seen("a", "b")),
        (expect(A, B), seen("a", "x", "b")),
        (expect(ExpectedEvent("a", optional=True), B), seen("b")),
        (expect(ExpectedEvent("a", min_count=2)), seen("a", "a", "a")),
        (expect(ExpectedEvent("a", min_count=0)), seen()),
        (expect(B, ExpectedEvent("a", optional=True)), seen("a", "b")),
        (expect(ExpectedEvent("b", fields={"number": 1})), seen("a", "b")),
        (expect(terminal="cancelled"), seen(terminal="cancelled")),
        (expect(drop_reason="budget"), seen(drop_reason="budget")),
        (expect(notice=["X", "Y"]), seen(notices=["Z", "Y"])),
        (expect(diagnostics={"k": 1}), seen("a")),
    ],
)  # fmt: skip
def test_what_was_expected_passes(wanted: Expect, found: Seen) -> None:
    assert judge(wanted, found) == []


@pytest.mark.parametrize(
    ("wanted", "found", "reason"),
    [
        (expect(A), seen("b"), "a came 0 times, expected 1"),
        (expect(ExpectedEvent("a", min_count=3)), seen("a", "a"), "a came 2 times, expected 3"),
        (expect(A, B), seen("b", "a"), "b came, but not after"),
        (expect(A, ExpectedEvent("a")), seen("a"), "a came, but not after"),
        (expect(ExpectedEvent("a", fields={"number": 5})), seen("a"), "a.number is 0, expected 5"),
        (expect(ExpectedEvent("a", fields={"x": 5})), seen("a"), "a.x is missing"),
        (expect(), seen(terminal="error"), "ended as error, expected success"),
        (expect(), seen(terminal=None), "ended as None"),
        (expect(), seen(drop_reason="budget"), "drop reason budget, expected None"),
        (expect(), seen(protocol_error="internal"), "protocol error internal"),
        (expect(notice=["X"]), seen(notices=["Z"]), "none of ['X']"),
        (expect(absent=["a"]), seen("a"), "a must not come"),
        (expect(), seen(faults=["something broke"]), "something broke"),
    ],
)
def test_each_lack_is_a_reason(wanted: Expect, found: Seen, reason: str) -> None:
    reasons = judge(wanted, found)
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_diagnostics_that_came_must_hold_what_is_expected() -> None:
    found = Seen(terminal="success")
    found.events.append({"type": "response.diagnostics", "diagnostics": {"k": 2}})
    reasons = judge(expect(diagnostics={"k": 1}), found)
    assert reasons == ["response.diagnostics.k is 2, expected 1"]


@pytest.mark.parametrize(
    ("wanted", "value", "fault"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, None),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2, "c": 3}]}, None),
        ({"a": [1]}, {"a": [1, 2]}, "expected [1]"),
        ({"a": {}}, {"a": 1}, "expected an object"),
        ({"a": 1}, {"a": True}, "is True, expected 1"),
        ({"a": {"$match": {"type": "integer"}}}, {"a": 7}, None),
        ({"a": {"$match": {"type": "integer"}}}, {"a": "7"}, "is not of type 'integer'"),
    ],
)
def test_fields_are_a_recursive_subset_with_schemas_inside(
    wanted: Any, value: Any, fault: str | None
) -> None:
    faults = differences(wanted, value)
    assert (faults == []) if fault is None else (fault in faults[0])
