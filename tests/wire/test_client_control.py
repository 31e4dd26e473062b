"""What a client says of operations in flight, and that the server hears exactly that."""

from collections.abc import Callable
from typing import Any

import pytest

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire import (
    BudgetChange,
    ClientConnection,
    ControlReceived,
    PriorityClass,
    encode_packet,
)
from nnrp_sched.wire.enums import MessageType
from tests.support.wire_machines import only, with_operation, with_session
from tests.support.wire_packets import FRAME, OPERATION, SESSION, sample

M = MessageType
SAID: dict[str, tuple[Callable[[ClientConnection], bytes], MessageType, dict[str, int]]] = {
    "priority": (
        lambda client: client.priority_update(SESSION, FRAME, PriorityClass.BACKGROUND, -5),
        M.PRIORITY_UPDATE,
        {"priority_class": 2, "priority_delta": -5, "deadline_unix_ms": 0},
    ),
    "deadline": (
        lambda client: client.deadline(SESSION, FRAME, 77),
        M.DEADLINE,
        {"deadline_unix_ms": 77, "flags": 3},
    ),
    "expiry": (
        lambda client: client.expire_at(SESSION, FRAME, 78),
        M.EXPIRE_AT,
        {"deadline_unix_ms": 78, "flags": 3},
    ),
    "supersede": (
        lambda client: client.supersede(SESSION, FRAME, 902, diagnostic="newer"),
        M.SUPERSEDE,
        {"old_operation_id": OPERATION, "new_operation_id": 902, "drop_reason": 2, "flags": 0},
    ),
    "supersede now": (
        lambda client: client.supersede(SESSION, FRAME, 902, now=True),
        M.SUPERSEDE,
        {"flags": 1},
    ),
    "budget": (
        lambda client: client.budget_update(SESSION, FRAME, 50),
        M.BUDGET_UPDATE,
        {"token_budget": 50, "flags": 1, "compute": 0},
    ),
    "more budget": (
        lambda client: client.budget_update(SESSION, FRAME, 5, BudgetChange.INCREMENT),
        M.BUDGET_UPDATE,
        {"token_budget": 5, "flags": 2},
    ),
}


@pytest.mark.parametrize("what", SAID)
def test_what_is_said_of_an_operation_is_heard(what: str) -> None:
    say, kind, values = SAID[what]
    pair = with_operation()
    event = only(pair.server.receive(say(pair.client)), ControlReceived)
    assert (event.session_id, event.frame_id) == (SESSION, FRAME)
    assert event.packet.message_type is kind
    heard: Any = event.packet.metadata
    assert {name: getattr(heard, name) for name in values} == values


@pytest.mark.parametrize("what", SAID)
def test_nothing_is_said_of_an_operation_that_is_not_in_flight(what: str) -> None:
    say, _, _ = SAID[what]
    with pytest.raises(LocalProtocolError):
        say(with_session().client)


@pytest.mark.parametrize("what", SAID)
def test_what_crosses_the_terminal_is_passed_over(what: str) -> None:
    say, _, _ = SAID[what]
    pair = with_operation()
    data = say(pair.client)
    pair.server.push_result(SESSION, FRAME, b"{}")
    assert pair.server.receive(data) == []


def test_later_messages_of_an_operation_have_later_sequences() -> None:
    pair = with_operation()
    sequences: list[int] = []
    for say, _, _ in SAID.values():
        event = only(pair.server.receive(say(pair.client)), ControlReceived)
        sequences.append(getattr(event.packet.metadata, "control_sequence", 0))
    told = [sequence for sequence in sequences if sequence]
    assert told == sorted(set(told))


@pytest.mark.parametrize(
    "kind", [M.PROGRESS, M.RESULT_HINT, M.RETRY_AFTER, M.CREDIT_UPDATE, M.BACKPRESSURE]
)
def test_advice_of_the_server_reaches_the_owner_of_the_machine(kind: MessageType) -> None:
    event = only(with_operation().client.receive(encode_packet(sample(kind))), ControlReceived)
    assert event.packet.message_type is kind
