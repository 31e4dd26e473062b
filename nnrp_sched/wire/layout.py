"""The form in which a layout is written down, and the rules a value can break.

A layout is data: one row a message type in `layouts.py`. Framing (lengths, reserved bytes) is
checked where bytes become packets; the value rules are asked for separately, because a wrong value
in a control message costs that message and not the connection.
"""

import re
import struct
from collections.abc import Callable
from enum import StrEnum, auto

import msgspec

from nnrp_sched.wire.enums import MessageType, Role
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session_messages import Metadata, OpaqueMetadata

ValueRule = Callable[[Packet], str | None]
"""Says what is wrong with a packet's values, or None."""

BOTH: frozenset[Role] = frozenset({Role.CLIENT, Role.SERVER})
CLIENT: frozenset[Role] = frozenset({Role.CLIENT})
SERVER: frozenset[Role] = frozenset({Role.SERVER})


class Scope(StrEnum):
    """Which header ids a message carries (wire digest 1.3)."""

    CONNECTION = auto()
    """Session 0 and frame 0."""
    SESSION = auto()
    """A session; frame 0."""
    SESSION_ADVICE = auto()
    """A session, or 0 for the connection; any frame id."""
    OPERATION = auto()
    """A session and the frame id bound to the metadata's operation."""
    FRAME = auto()
    """A session and a frame id, without an operation id in the metadata."""
    TRACE = auto()
    """A session, and a frame id or 0 for the session itself."""


class Body(StrEnum):
    """What may follow the metadata."""

    NONE = auto()
    """Nothing."""
    COUNTED = auto()
    """Exactly the sum of the metadata's length fields."""
    FREE = auto()
    """Anything: a typed body, which describes itself, or a diagnostic text."""


class Layout(msgspec.Struct, frozen=True):
    """Everything the codec knows of one message type."""

    message_type: MessageType
    senders: frozenset[Role]
    scope: Scope
    metadata_type: type[Metadata] | None
    codec: struct.Struct
    reserved: int
    """A mask over the metadata region, read as a little-endian integer: these bits are zero."""
    body: Body
    length_fields: tuple[str, ...]
    """The metadata fields whose sum is the body length (`Body.COUNTED`)."""
    rules: tuple[ValueRule, ...]

    @property
    def supported(self) -> bool:
        """False for the types that are measured and refused (wire digest 1.2)."""
        return self.metadata_type is not OpaqueMetadata

    def pack(self, metadata: Metadata | None) -> bytes:
        """The metadata region. Raises struct.error for a value its field cannot hold."""
        if metadata is None:
            return b""
        if isinstance(metadata, OpaqueMetadata):
            return metadata.data
        return self.codec.pack(*msgspec.structs.astuple(metadata))

    def unpack(self, region: bytes) -> Metadata | None:
        """The struct of a metadata region of the right length."""
        if self.metadata_type is None:
            return None
        if self.metadata_type is OpaqueMetadata:
            return OpaqueMetadata(region)
        return self.metadata_type(*self.codec.unpack(region))

    def reserved_bits_set(self, region: bytes) -> bool:
        """Whether a byte that must be zero is not."""
        return bool(self.reserved and int.from_bytes(region, "little") & self.reserved)

    def expected_body_bytes(self, metadata: Metadata | None) -> int | None:
        """The body length the metadata declares; None when it declares none."""
        if self.body is Body.FREE:
            return None
        lengths: list[int] = [getattr(metadata, name) for name in self.length_fields]
        return sum(lengths)

    def value_fault(self, packet: Packet) -> str | None:
        """The first rule its values break, in words."""
        for rule in self.rules:
            fault = rule(packet)
            if fault is not None:
                return fault
        return None


def row(
    message_type: MessageType,
    senders: frozenset[Role],
    scope: Scope,
    metadata_type: type[Metadata] | None = None,
    fields: str = "",
    *,
    body: Body | tuple[str, ...] = Body.NONE,
    rules: tuple[ValueRule, ...] = (),
) -> Layout:
    """One row of the table; `body` is a kind, or the names of the metadata's length fields."""
    codec = struct.Struct("<" + fields)
    return Layout(
        message_type=message_type,
        senders=senders,
        scope=scope,
        metadata_type=metadata_type,
        codec=codec,
        reserved=_reserved_mask(codec),
        body=Body.COUNTED if isinstance(body, tuple) else body,
        length_fields=body if isinstance(body, tuple) else (),
        rules=rules,
    )


_FIELD = re.compile(r"(\d*)([a-zA-Z])")
_ALL_ONES = {"B": 0xFF, "H": 0xFFFF, "h": -1, "I": 0xFFFF_FFFF, "Q": 0xFFFF_FFFF_FFFF_FFFF}


def _reserved_mask(codec: struct.Struct) -> int:
    """The bits no field covers: pack all fields full, and what stays zero is padding."""
    full = [
        _ALL_ONES[code]
        for count, code in _FIELD.findall(codec.format)
        if code != "x"
        for _ in range(int(count or 1))
    ]
    covered = int.from_bytes(codec.pack(*full), "little")
    return covered ^ ((1 << 8 * codec.size) - 1)
