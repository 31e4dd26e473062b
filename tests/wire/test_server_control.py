"""What a server says beside results, and that it stays quiet until that was negotiated."""

from collections.abc import Callable
from typing import Any

import pytest

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire import (
    CapabilityToken,
    ControlReceived,
    ErrorCode,
    HintReason,
    PressureLevel,
    ProgressStage,
    ServerConnection,
    encode_packet,
)
from nnrp_sched.wire.enums import MessageType
from tests.support.wire_machines import Pair, only, packets, replies
from tests.support.wire_packets import FRAME, OPERATION, SESSION, sample

M = MessageType

NEGOTIATED: dict[str, tuple[CapabilityToken, Callable[[ServerConnection], bytes]]] = {
    "progress": (
        CapabilityToken.PROGRESS_PARTIAL,
        lambda server: server.progress(SESSION, FRAME, ProgressStage.QUEUED),
    ),
    "credit": (
        CapabilityToken.CREDIT_BACKPRESSURE,
        lambda server: server.credit_update(SESSION, 3),
    ),
    "backpressure": (
        CapabilityToken.CREDIT_BACKPRESSURE,
        lambda server: server.backpressure(SESSION, retry_after_ms=5),
    ),
    "pause": (
        CapabilityToken.CREDIT_BACKPRESSURE,
        lambda server: server.pause_session(SESSION),
    ),
    "retry after": (
        CapabilityToken.RECOVERABLE_ERROR,
        lambda server: server.retry_after(SESSION, FRAME, retry_after_ms=5, diagnostic="busy"),
    ),
}
"""Each command, and what has to be negotiated for it."""


def agreed(*tokens: str) -> Pair:
    """A pair with operation 901 in flight and an agreement on these capabilities."""
    both = Pair(offers=tokens)
    both.open()
    both.submit()
    if tokens:
        (answer,) = replies(both.server.receive(both.client.negotiate(SESSION, tokens)))
        both.client.receive(encode_packet(answer))
    return both


@pytest.mark.parametrize("command", NEGOTIATED)
def test_nothing_is_said_before_it_was_negotiated(command: str) -> None:
    _, say = NEGOTIATED[command]
    with pytest.raises(LocalProtocolError) as raised:
        say(agreed().server)
    assert raised.value.code == ErrorCode.UNSUPPORTED_CAPABILITY


@pytest.mark.parametrize("command", NEGOTIATED)
def test_what_was_negotiated_is_understood_at_the_other_end(command: str) -> None:
    token, say = NEGOTIATED[command]
    both = agreed(token)
    events = both.client.receive(say(both.server))
    assert events
    assert all(isinstance(event, ControlReceived) for event in events)


@pytest.mark.parametrize("command", NEGOTIATED)
def test_nothing_is_said_in_a_session_that_is_gone(command: str) -> None:
    token, say = NEGOTIATED[command]
    both = agreed(token)
    both.server.receive(both.client.close_session(SESSION))
    both.server.abandon_operations(SESSION)
    both.server.acknowledge_session_close(SESSION)
    with pytest.raises(LocalProtocolError):
        say(both.server)


@pytest.mark.parametrize("command", ["progress", "retry after"])
def test_nothing_is_said_of_an_operation_that_has_ended(command: str) -> None:
    token, say = NEGOTIATED[command]
    both = agreed(token)
    both.server.push_result(SESSION, FRAME, b"{}")
    with pytest.raises(LocalProtocolError) as raised:
        say(both.server)
    assert raised.value.code == ErrorCode.INVALID_STATE


def metadata(data: bytes) -> Any:
    """The metadata of the last packet in some bytes."""
    return packets(data)[-1].metadata


def test_progress_counts_up_within_its_operation_and_knows_no_percentage() -> None:
    server = agreed(CapabilityToken.PROGRESS_PARTIAL).server
    for sequence, stage in enumerate((ProgressStage.QUEUED, ProgressStage.EXECUTING), 1):
        told = metadata(server.progress(SESSION, FRAME, stage))
        assert (told.operation_id, told.progress_sequence, told.stage, told.percent_x100) == (
            OPERATION,
            sequence,
            stage,
            0xFFFF,
        )


def test_credit_and_backpressure_are_about_the_session() -> None:
    server = agreed(CapabilityToken.CREDIT_BACKPRESSURE).server
    credit = metadata(server.credit_update(SESSION, 3))
    assert (credit.scope_id, credit.credit_window, credit.level, credit.flags) == (SESSION, 3, 0, 0)
    pressed = metadata(server.backpressure(SESSION, retry_after_ms=2**40))
    assert (pressed.credit_window, pressed.level, pressed.reason) == (0, PressureLevel.HARD, 1)
    assert pressed.retry_after_ms == 2**32 - 1


def test_each_pause_has_a_later_epoch() -> None:
    server = agreed(CapabilityToken.CREDIT_BACKPRESSURE).server
    epochs = [metadata(server.pause_session(SESSION)).credit_epoch for _ in range(3)]
    assert epochs == [1, 2, 3]


def test_a_hint_needs_no_negotiation() -> None:
    both = agreed()
    data = both.server.result_hint(SESSION, HintReason.QUEUE_FULL, retry_after_ms=70)
    event = only(both.client.receive(data), ControlReceived)
    assert getattr(event.packet.metadata, "retry_after_ms", 0) == 70


def test_a_busy_server_names_the_operation_that_should_come_again() -> None:
    server = agreed(CapabilityToken.RECOVERABLE_ERROR).server
    busy, retry = packets(server.retry_after(SESSION, FRAME, retry_after_ms=9, diagnostic="full"))
    assert (busy.message_type, busy.body) == (M.ERROR_RECOVERABLE, b"full")
    assert getattr(busy.metadata, "flags", 0) == 2
    assert getattr(retry.metadata, "scope_id", 0) == OPERATION
    assert getattr(retry.metadata, "retry_after_ms", 0) == 9


def test_a_session_does_not_move_to_another_carrier() -> None:
    both = agreed()
    (answer,) = replies(both.server.receive(encode_packet(sample(M.SESSION_MIGRATE))))
    assert answer.message_type is M.SESSION_MIGRATE_ACK
    assert getattr(answer.metadata, "accept_code", 0) != 0
    assert both.server.session_ids == (SESSION,)
