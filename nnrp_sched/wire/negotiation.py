"""How a session's capabilities are agreed on (wire digest 3.9; adapter facts 5.1).

Nothing optional is sent in a session before both ends named it.
"""

from collections.abc import Collection

from msgspec import Struct

from nnrp_sched.wire.capability_tokens import decode_tokens, encode_tokens
from nnrp_sched.wire.control_enums import CapabilityFlag
from nnrp_sched.wire.enums import MessageType
from nnrp_sched.wire.operation_messages import Capability
from nnrp_sched.wire.packet import Packet


class Agreement(Struct, frozen=True):
    """What a negotiation came to."""

    tokens: frozenset[str]
    mismatch: bool = False
    """Whether the peer insisted and nothing of it is offered."""
    reply: MessageType = MessageType.CAPABILITY_NEGOTIATION


def agree(wish: Capability, body: bytes, offers: Collection[str]) -> Agreement:
    """What is accepted of a wish: the part of it that is offered; what is unknown is left out.

    Only profile 0 is spoken here: for another one nothing is accepted. Raises `TokenFault`.
    """
    asked = decode_tokens(wish.count, body)
    tokens = frozenset(asked).intersection(() if wish.profile_id else offers)
    reduced = bool(tokens) and len(tokens) < len(asked)
    degrade = reduced and wish.flags & CapabilityFlag.DOWNGRADE_ALLOWED
    return Agreement(
        tokens,
        mismatch=not tokens and bool(wish.flags & CapabilityFlag.HARD),
        reply=MessageType.DEGRADE_PROFILE if degrade else MessageType.CAPABILITY_NEGOTIATION,
    )


def capability_packet(
    kind: MessageType, tokens: Collection[str], session_id: int, flags: int = 0
) -> Packet:
    """CAPABILITY_NEGOTIATION or DEGRADE_PROFILE naming `tokens`, without costs or limits."""
    body = encode_tokens(tokens)
    metadata = Capability(
        profile_id=0,
        count=len(set(tokens)),
        cost_model=0,
        rank=0,
        limit_bytes=0,
        limit_units=0,
        body_bytes=len(body),
        flags=flags,
    )
    return Packet(kind, metadata, body, session_id)
