"""What a hostile or broken client could send of each message type, and what must come of it.

Everything is derived from the layout table, so that a new message type is covered by being there.
What is expected is said by rules of the digest (1.1 to 1.3, 2, 4.1, 6), not by asking the machine.
"""

from collections.abc import Iterator
from enum import Enum, auto

from msgspec import Struct
from msgspec.structs import replace

from nnrp_sched.wire import Packet, Role
from nnrp_sched.wire.enums import MessageType
from nnrp_sched.wire.layout import Layout, Scope
from nnrp_sched.wire.layouts import LAYOUTS
from tests.support.wire_packets import WIDTHS, field_codes, field_names, raw_bytes, sample

M = MessageType
HEADER_BYTES = 40
_LENGTHS_AT = 12
_SESSION_AT = 20
_OPERATION_FIELDS = ("operation_id", "old_operation_id")


class Fate(Enum):
    """What becomes of a connection on which something was sent."""

    FATAL = auto()
    """ERROR (fatal, of the connection) and CLOSE; nothing more is read."""
    LEFT = auto()
    """The client ended the connection itself; nothing is answered."""
    ALIVE = auto()
    """It goes on, whatever was answered, and so do its other sessions."""


class Ids(Struct, frozen=True):
    """Where the peer under test stands."""

    session_id: int
    frame_id: int
    operation_id: int
    """In flight in that session."""
    finished_frame_id: int
    finished_operation_id: int
    other_session_id: int
    """A session without that operation."""
    unknown_session_id: int = 0xFFFF_0000


class Mutation(Struct, frozen=True):
    """Some bytes of one message type."""

    kind: MessageType
    name: str
    data: bytes
    fate: Fate


def readdressed(data: bytes, standard: Ids, ids: Ids) -> bytes:
    """The bytes of one or more whole or cut packets, for the sessions of another peer.

    Of the ids only those of the sessions may differ.
    """
    changed = bytearray(data)
    sessions = {
        standard.session_id: ids.session_id,
        standard.other_session_id: ids.other_session_id,
    }
    start = 0
    while start + HEADER_BYTES <= len(data):
        place = slice(start + _SESSION_AT, start + _SESSION_AT + 4)
        session_id = int.from_bytes(data[place], "little")
        changed[place] = sessions.get(session_id, session_id).to_bytes(4, "little")
        lengths = data[start + _LENGTHS_AT : start + _LENGTHS_AT + 8]
        start += HEADER_BYTES + int.from_bytes(lengths[:4], "little")
        start += int.from_bytes(lengths[4:], "little")
    return bytes(changed)


def right(kind: MessageType, ids: Ids, **changes: int) -> Packet:
    """The sample of a type for the operation in flight."""
    return addressed(sample(kind, None, **changes), ids, ids.frame_id, ids.operation_id)


def addressed(packet: Packet, ids: Ids, frame_id: int, operation_id: int) -> Packet:
    """A packet for a session, and for an operation of it where the type names one."""
    layout = LAYOUTS[packet.message_type]
    if layout.scope is Scope.CONNECTION:
        return packet
    metadata = packet.metadata
    for name in _OPERATION_FIELDS:
        if name in field_names(layout) and getattr(metadata, name):
            assert metadata is not None
            metadata = replace(metadata, **{name: operation_id})
    by_frame = layout.scope in (Scope.OPERATION, Scope.FRAME)
    return replace(
        packet,
        metadata=metadata,
        session_id=ids.session_id,
        frame_id=frame_id if by_frame else 0,
    )


def mutations(kind: MessageType, ids: Ids) -> Iterator[Mutation]:
    """Every mutation of a type but the truncations."""
    layout = LAYOUTS[kind]

    def made(name: str, packet: Packet, fate: Fate | None = None) -> Mutation:
        return Mutation(kind, name, raw_bytes(packet), fate or expected(packet))

    whole = right(kind, ids)
    yield made("as it should be", whole)
    yield Mutation(kind, "twice", raw_bytes(whole) * 2, expected(whole))
    if layout.supported:
        yield from _field_values(layout, whole)
        yield from _reserved_bits(layout, whole)
    yield from _lengths(kind, whole)
    yield from _scopes(layout, whole, ids)
    finished = addressed(sample(kind), ids, ids.finished_frame_id, ids.finished_operation_id)
    yield made("after the terminal", finished)
    elsewhere = replace(whole, session_id=ids.other_session_id)
    if layout.scope is not Scope.CONNECTION:
        yield made("for another session", elsewhere)
        yield made("for an unknown session", replace(whole, session_id=ids.unknown_session_id))
    for bit in range(6, 32):
        header = replace(whole, flags=1 << bit)
        yield made(f"header flag bit {bit}", header, Fate.FATAL)


def about_an_operation(kind: MessageType) -> bool:
    """Whether a client may send the type, and its sample names an operation in flight."""
    packet = sample(kind)
    layout = LAYOUTS[kind]
    named = any(getattr(packet.metadata, name, 0) for name in _OPERATION_FIELDS)
    return (
        Role.CLIENT in layout.senders
        and kind is not M.FRAME_SUBMIT
        and (named or kind is M.FRAME_CANCEL)
    )


def truncations(kind: MessageType, ids: Ids) -> Iterator[bytes]:
    """A message cut at every byte."""
    data = raw_bytes(right(kind, ids))
    for cut in range(1, len(data)):
        yield data[:cut]


def expected(packet: Packet) -> Fate:
    """What one well-framed packet does to a connection that has said hello."""
    layout = LAYOUTS[packet.message_type]
    metadata = packet.metadata
    if Role.CLIENT not in layout.senders or packet.message_type is M.CLIENT_HELLO:
        return Fate.FATAL  # Not for a client to say, or not a second time.
    if layout.scope is Scope.CONNECTION and (packet.session_id or packet.frame_id):
        return Fate.FATAL
    declared = layout.expected_body_bytes(metadata) if layout.supported else None
    if declared is not None and declared != len(packet.body):
        return Fate.FATAL
    if packet.message_type is M.CLOSE:
        return Fate.LEFT
    if packet.message_type is M.ERROR and layout.value_fault(packet) is None:
        fatal, scope = getattr(metadata, "is_fatal", 0), getattr(metadata, "scope", 0)
        return Fate.LEFT if fatal and scope == 0 else Fate.ALIVE
    return Fate.ALIVE


def _field_values(layout: Layout, whole: Packet) -> Iterator[Mutation]:
    """Each field at its limits and beyond."""
    metadata = whole.metadata
    if metadata is None:
        return
    for name, code in zip(field_names(layout), field_codes(layout), strict=True):
        for value in _values(code):
            packet = replace(whole, metadata=replace(metadata, **{name: value}))
            yield Mutation(
                layout.message_type, f"{name} = {value}", raw_bytes(packet), expected(packet)
            )


def _values(code: str) -> list[int]:
    if code == "h":
        return [-(2**15), -1, 0, 1, 2**15 - 1]
    top = 2 ** WIDTHS[code]
    edges = {0, 1, 2, 3, 4, 5, 9, 12, top // 2, top - 2, top - 1, 10_001, 0x80, 0x40}
    return sorted(value for value in edges if 0 <= value < top)


def _reserved_bits(layout: Layout, whole: Packet) -> Iterator[Mutation]:
    data = raw_bytes(whole)
    for bit in range(8 * layout.codec.size):
        if layout.reserved >> bit & 1:
            wrong = bytearray(data)
            wrong[HEADER_BYTES + bit // 8] |= 1 << bit % 8
            yield Mutation(
                layout.message_type, f"reserved bit {bit} of the metadata", bytes(wrong), Fate.FATAL
            )


def _lengths(kind: MessageType, whole: Packet) -> Iterator[Mutation]:
    """Header lengths that do not fit the type: the metadata's always, the body's as declared."""
    layout = LAYOUTS[kind]
    if layout.supported:
        longer = raw_bytes(whole)
        size = layout.codec.size + 1
        wrong = longer[:12] + size.to_bytes(4, "little") + longer[16:] + b"\0"
        yield Mutation(kind, "metadata one byte longer", wrong, Fate.FATAL)
        if layout.codec.size:
            shorter = longer[:12] + (size - 2).to_bytes(4, "little") + longer[16:-1]
            yield Mutation(kind, "metadata one byte shorter", shorter, Fate.FATAL)
    more = replace(whole, body=whole.body + b"x")
    fate = expected(more)
    if layout.supported and layout.body.value == "none":
        fate = Fate.FATAL
    yield Mutation(kind, "body one byte longer", raw_bytes(more), fate)


def _scopes(layout: Layout, whole: Packet, ids: Ids) -> Iterator[Mutation]:
    """Ids in the header that the type does not carry, or of nothing there is."""
    kind = layout.message_type
    for name, session_id, frame_id in (
        ("no session", 0, whole.frame_id),
        ("no session and no frame", 0, 0),
        ("no frame", whole.session_id, 0),
        ("a frame from the future", whole.session_id, 0xFFFF_FFF0),
        ("another operation's frame", whole.session_id, ids.finished_frame_id),
        ("ids where none belong", ids.session_id, ids.frame_id),
    ):
        packet = replace(whole, session_id=session_id, frame_id=frame_id)
        yield Mutation(kind, name, raw_bytes(packet), expected(packet))
