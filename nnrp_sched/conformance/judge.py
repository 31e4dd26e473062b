"""Whether what was seen is what a recipe expects."""

from collections.abc import Sequence
from typing import Any, Final

from nnrp_sched.conformance.files import faults_of
from nnrp_sched.conformance.recipe import Expect, ExpectedEvent
from nnrp_sched.conformance.seen import Seen
from nnrp_sched.profile.json_values import JsonObject, is_array, is_object

MATCH: Final = "$match"
"""An object with only this member stands for every value that follows the JSON Schema in it."""


def judge(expect: Expect, seen: Seen) -> list[str]:
    """Why a case failed; empty when it passed (wire digest 5.1, the suite's validator)."""
    reasons = list(seen.faults)
    if seen.terminal != expect.terminal:
        reasons.append(f"ended as {seen.terminal}, expected {expect.terminal}")
    if seen.drop_reason != expect.drop_reason:
        reasons.append(f"drop reason {seen.drop_reason}, expected {expect.drop_reason}")
    if seen.protocol_error != expect.protocol_error:
        reasons.append(f"protocol error {seen.protocol_error}, expected {expect.protocol_error}")
    if expect.notice and not set(expect.notice) & set(seen.notices):
        reasons.append(f"none of {expect.notice} came before the terminal, only {seen.notices}")
    kinds = [event["type"] for event in seen.events]
    reasons += [f"{kind} must not come" for kind in expect.absent if kind in kinds]
    if expect.diagnostics:
        reasons += _diagnostics_faults(expect.diagnostics, seen.events)
    return reasons + _event_faults(expect.events, seen.events)


def _event_faults(expected: Sequence[ExpectedEvent], events: Sequence[JsonObject]) -> list[str]:
    """Counts first, then the order: each expected event after the match of the one before."""
    reasons: list[str] = []
    position = 0
    for wanted in expected:
        places = [n for n, event in enumerate(events) if event["type"] == wanted.type]
        if len(places) < wanted.least:
            reasons.append(f"{wanted.type} came {len(places)} times, expected {wanted.least}")
            continue
        place = next((place for place in places if place >= position), None)
        if place is None:
            if wanted.least:
                reasons.append(f"{wanted.type} came, but not after what is expected before it")
            continue
        reasons += [f"{wanted.type}{fault}" for fault in differences(wanted.fields, events[place])]
        position = place + 1
    return reasons


def _diagnostics_faults(wanted: JsonObject, events: Sequence[JsonObject]) -> list[str]:
    return [
        f"response.diagnostics{fault}"
        for event in events
        if event["type"] == "response.diagnostics"
        for fault in differences(wanted, event.get("diagnostics"))
    ]


def differences(wanted: Any, value: Any, place: str = "") -> list[str]:
    """Where `value` lacks something of `wanted`; what it has beyond does not matter."""
    if is_object(wanted) and wanted.keys() == {MATCH}:
        return [f"{place}: {fault}" for fault in faults_of(value, wanted[MATCH])]
    if is_object(wanted):
        if not is_object(value):
            return [f"{place} is {value!r}, expected an object"]
        return [
            fault
            for name in wanted
            for fault in (
                differences(wanted[name], value[name], f"{place}.{name}")
                if name in value
                else [f"{place}.{name} is missing"]
            )
        ]
    if is_array(wanted) and is_array(value) and len(wanted) == len(value):
        pairs = enumerate(zip(wanted, value, strict=True))
        return [f for n, (each, got) in pairs for f in differences(each, got, f"{place}[{n}]")]
    same = value == wanted and isinstance(value, bool) == isinstance(wanted, bool)
    return [] if same else [f"{place} is {value!r}, expected {wanted!r}"]
