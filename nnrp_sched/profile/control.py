"""The envelope of `nnrp-sched-control/1`: the queue, aborts, priorities, capabilities."""

from typing import Any, Final

from nnrp_sched.profile.own_requests import OwnRequest, build_own, parse_own

CONTROL_SCHEMA: Final = "nnrp-sched-control/1"

ControlRequest = OwnRequest


def build_control(operation: str, body: dict[str, Any]) -> bytes:
    """Write the document a client submits."""
    return build_own(CONTROL_SCHEMA, operation, body)


def parse_control(document: bytes, operations: frozenset[str]) -> ControlRequest | None:
    """Read a control request; the rest is as for `parse_own`."""
    return parse_own(document, CONTROL_SCHEMA, operations)
