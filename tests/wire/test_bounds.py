"""Nothing of an operation outlives it but its bounded tombstone."""

import gc
import sys
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any

from nnrp_sched.wire import DropReason, Limits, Reply, SessionClosed, SubmitReceived, encode_packet
from nnrp_sched.wire.enums import MessageType
from nnrp_sched.wire.session import Session
from tests.support.wire_machines import Pair, only, with_session
from tests.support.wire_packets import SESSION, sample

M = MessageType
TOMBSTONES = 100


def deep_size(root: Any) -> int:
    """Bytes of an object and of all that it reaches; code and types are left out."""
    seen: set[int] = set()
    waiting: list[Any] = [root]
    size = 0
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type | ModuleType | FunctionType):
            continue
        seen.add(id(value))
        size += sys.getsizeof(value)
        waiting.extend(gc.get_referents(value))
    return size


def session_of(machine: Any) -> Session:
    """The state of session 7, which no public name shows."""
    sessions: dict[int, Session] = attrgetter("_sessions")(machine)
    return sessions[SESSION]


def run_operations(pair: Pair, first: int, last: int) -> None:
    """Serve operations of every kind of ending, one after the other."""
    for number in range(first, last):
        frame_id, data = pair.client.submit(SESSION, b"{}", operation_id=number)
        only(pair.server.receive(data), SubmitReceived)
        pair.client.receive(pair.server.partial_result(SESSION, frame_id, b"{}"))
        if number % 3 == 0:
            pair.server.receive(pair.client.cancel(SESSION, frame_id))
            end = pair.server.drop_result(SESSION, frame_id, DropReason.PEER_CANCELLED)
        else:
            end = pair.server.push_result(SESSION, frame_id, b"{}")
        assert len(pair.client.receive(end)) == 1


def test_fifty_thousand_operations_on_one_session_leave_the_tables_as_small_as_a_thousand() -> None:
    pair = with_session(Limits(tombstones=TOMBSTONES))
    run_operations(pair, 1, 1000)
    sizes = [deep_size(machine) for machine in (pair.server, pair.client)]
    run_operations(pair, 1000, 50_000)
    for machine, size in zip((pair.server, pair.client), sizes, strict=True):
        session = session_of(machine)
        assert session.last_frame_id == 49_999
        assert session.operations == {}
        assert session.by_operation == {}
        assert len(session.finished) == TOMBSTONES
        # The numbers themselves grow by a few bytes each.
        assert deep_size(machine) < size + 16 * TOMBSTONES


def test_an_operation_in_flight_is_measured_by_the_same_measure() -> None:
    pair = with_session()
    before = deep_size(pair.server)
    pair.submit()
    assert deep_size(pair.server) > before + 100


def test_sessions_that_come_and_go_leave_a_bounded_memory() -> None:
    pair = Pair(Limits(tombstones=TOMBSTONES, max_sessions=2))

    def come_and_go(first: int, last: int) -> None:
        for session_id in range(first, last):
            pair.open(session_id)
            deadline = sample(M.DEADLINE, session_id=session_id)
            pair.server.receive(encode_packet(deadline))
            pair.server.receive(pair.client.close_session(session_id))
            ack = pair.server.acknowledge_session_close(session_id)
            assert pair.client.receive(ack) == [SessionClosed(session_id)]

    come_and_go(1, 200)
    sizes = [deep_size(machine) for machine in (pair.server, pair.client)]
    come_and_go(200, 2000)
    for machine, size in zip((pair.server, pair.client), sizes, strict=True):
        assert deep_size(machine) < size + 16 * TOMBSTONES


def test_a_flood_of_refused_messages_leaves_nothing_behind() -> None:
    pair = with_session()
    before = deep_size(pair.server)
    for number in range(1, 3000):
        unknown = sample(M.CANCEL, operation_id=number, frame_id=number)
        only(pair.server.receive(encode_packet(unknown)), Reply)
    # The machine keeps the events of its last reading, and one answer is among them.
    assert deep_size(pair.server) < before + 2000
