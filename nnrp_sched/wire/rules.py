"""The rules that values can break: makers for the usual ones, and those that rows share."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from nnrp_sched.wire.control_enums import FlowReason, FlowScope, PressureLevel
from nnrp_sched.wire.enums import CancelReason, PayloadKind, PriorityClass
from nnrp_sched.wire.layout import ValueRule
from nnrp_sched.wire.operation_messages import FrameSubmit
from nnrp_sched.wire.packet import Packet


def one_of(field: str, registry: type[IntEnum], *more: int) -> ValueRule:
    """The field holds a registered number, or one of `more`."""
    allowed = frozenset({int(member) for member in registry} | set(more))

    def rule(packet: Packet) -> str | None:
        value: int = getattr(packet.metadata, field)
        return None if value in allowed else f"{field} {value} is not a {registry.__name__}"

    return rule


def at_most(field: str, highest: int, *more: int) -> ValueRule:
    """The field holds 0 to `highest`, or one of `more`."""

    def rule(packet: Packet) -> str | None:
        value: int = getattr(packet.metadata, field)
        return None if value <= highest or value in more else f"{field} {value} is above {highest}"

    return rule


def masked(field: str, mask: int) -> ValueRule:
    """The field has no bit outside `mask`."""

    def rule(packet: Packet) -> str | None:
        value: int = getattr(packet.metadata, field)
        return f"{field} {value:#x} has bits outside {mask:#x}" if value & ~mask else None

    return rule


def not_zero(field: str) -> ValueRule:
    """The field is not 0."""

    def rule(packet: Packet) -> str | None:
        return None if getattr(packet.metadata, field) else f"{field} is 0"

    return rule


def where(text: str, holds: Callable[[Any, Packet], bool]) -> ValueRule:
    """Any other rule; `holds` sees the metadata and the packet, `text` says what is wrong."""

    def rule(packet: Packet) -> str | None:
        return None if holds(packet.metadata, packet) else text

    return rule


def without_tensor_fields(submit: FrameSubmit, _packet: Packet) -> bool:
    """Whether a submit without tensor payload leaves the tensor fields 0 (wire digest 3.1).

    `tile_index_mode` is excepted: the SDK writes 1 into it always.
    """
    return bool(submit.payload_kind_bitmap & PayloadKind.TENSOR) or not any(
        getattr(submit, name) for name in _TENSOR_FIELDS
    )


_TENSOR_FIELDS = (
    *("src_w", "src_h", "tile_w", "tile_h", "tile_count", "section_count", "input_profile"),
    *("target_fps_x100", "tile_base_id", "camera_bytes", "tile_index_bytes"),
)


# --- shared by several rows ----------------------------------------------------------------------

FLOW_RULES: tuple[ValueRule, ...] = (
    one_of("scope", FlowScope),
    one_of("reason", FlowReason),
    one_of("level", PressureLevel),
    masked("flags", 0xF),
    where(
        "retry_after_ms without its flag",
        lambda flow, _: flow.retry_after_ms == 0 or flow.flags & 2 != 0,
    ),
    where(
        "connection scope with a session id, an operation id or another scope's credit",
        lambda flow, packet: (
            flow.scope != FlowScope.CONNECTION
            or not (
                packet.session_id
                or flow.session_credit
                or flow.operation_credit
                or flow.operation_id
            )
        ),
    ),
    where(
        "session scope without a session id, or with an operation id or another scope's credit",
        lambda flow, packet: (
            flow.scope != FlowScope.SESSION
            or (
                packet.session_id != 0
                and not (flow.connection_credit or flow.operation_credit or flow.operation_id)
            )
        ),
    ),
    where(
        "operation scope without session id and operation id, or with another scope's credit",
        lambda flow, packet: (
            flow.scope != FlowScope.OPERATION
            or (
                packet.session_id != 0
                and flow.operation_id != 0
                and not (flow.connection_credit or flow.session_credit)
            )
        ),
    ),
)

CONTROL_RULES: tuple[ValueRule, ...] = (one_of("reason", CancelReason), masked("flags", 3))

SCHEDULING_RULES: tuple[ValueRule, ...] = (
    not_zero("operation_id"),
    one_of("priority_class", PriorityClass),
    masked("flags", 3),
)

TIME_RULES: tuple[ValueRule, ...] = (*SCHEDULING_RULES, not_zero("deadline_unix_ms"))

CAPABILITY_RULES: tuple[ValueRule, ...] = (masked("flags", 3),)

PRESSURE_RULES: tuple[ValueRule, ...] = (
    masked("flags", 3),
    where("both scopes at once", lambda pressure, _: pressure.flags != 3),
    where(
        "operation scope without its id",
        lambda pressure, _: not pressure.flags & 2 or pressure.scope_id != 0,
    ),
)

HINT_RULES: tuple[ValueRule, ...] = (not_zero("operation_id"), masked("flags", 3))
