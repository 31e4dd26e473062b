"""Each message type broken in each way, on the server's machine: the answer, and that it lives."""

import pytest

from nnrp_sched.wire import (
    CancelReceived,
    ConnectionFailed,
    ErrorScope,
    Limits,
    Reply,
    ServerConnection,
    SessionFailed,
    SubmitReceived,
)
from nnrp_sched.wire.enums import MessageType
from tests.support.wire_machines import Pair, only, packets, replies
from tests.support.wire_mutations import (
    Fate,
    Ids,
    Mutation,
    about_an_operation,
    mutations,
    right,
    truncations,
)
from tests.support.wire_packets import raw_bytes, sample

M = MessageType
by_type = pytest.mark.parametrize("kind", list(M), ids=lambda kind: kind.name)

IDS = Ids(
    session_id=7,
    frame_id=2,
    operation_id=902,
    finished_frame_id=1,
    finished_operation_id=901,
    other_session_id=8,
)
_BEFORE_HELLO = {M.CLIENT_HELLO, M.TRANSPORT_PROBE, M.CLOSE}
_NEVER_ANSWERED = {M.ERROR, M.ERROR_RECOVERABLE}
"""Or two ends could answer each other for ever."""


def standing() -> Pair:
    """Session 7 with a finished and a running operation, session 8 with a running one."""
    pair = Pair(Limits())
    pair.open(7)
    pair.open(8)
    pair.submit(7, 901)
    pair.client.receive(pair.server.push_result(7, 1, b"{}"))
    pair.submit(7, 902)
    pair.submit(8, 903)
    return pair


def check(server: ServerConnection, mutation: Mutation) -> None:
    """Send one mutation and hold the machine to what is expected."""
    events = server.receive(mutation.data)
    what = (mutation.kind.name, mutation.name, events)
    answers = replies(events)
    failures = [event for event in events if isinstance(event, ConnectionFailed)]
    if mutation.fate is Fate.FATAL:
        assert server.closed, what
        assert len(failures) == 1, what
        kinds = [packet.message_type for packet in answers]
        assert kinds[-2:] == [M.ERROR, M.CLOSE], what
        assert getattr(answers[-2].metadata, "is_fatal", 0) == 1, what
        assert getattr(answers[-2].metadata, "scope", None) == ErrorScope.CONNECTION, what
        return
    if mutation.fate is Fate.LEFT:
        assert server.closed, what
        assert answers == [], what
        return
    assert not server.closed, what
    assert failures == [], what
    # Nothing of another session is touched.
    assert server.in_flight(8, 1), what
    assert 8 in server.session_ids, what
    for event in events:
        if isinstance(event, SessionFailed | CancelReceived):
            assert event.session_id == 7, what
    (pong,) = packets(only(server.receive(raw_bytes(sample(M.PING, session_id=8))), Reply).data)
    assert pong.message_type is M.PONG, what
    if mutation.kind in _NEVER_ANSWERED:
        assert answers == [], what


@by_type
def test_every_mutation_has_the_answer_of_the_digest_and_touches_no_other_session(
    kind: MessageType,
) -> None:
    seen = 0
    for mutation in mutations(kind, IDS):
        check(standing().server, mutation)
        seen += 1
    assert seen > 30


@by_type
def test_a_message_cut_at_any_byte_waits_for_the_rest_and_is_a_failure_at_the_end(
    kind: MessageType,
) -> None:
    for piece in truncations(kind, IDS):
        server = standing().server
        early = server.receive(piece)
        # A header may be wrong by its first bytes already: then nobody waits for the rest.
        if not server.closed:
            assert early == []
            early = server.receive_end()
        assert isinstance(early[-1], ConnectionFailed)
        assert server.closed


@by_type
def test_a_message_before_the_hello_ends_the_connection(kind: MessageType) -> None:
    server = ServerConnection(Limits())
    server.receive(raw_bytes(right(kind, IDS)))
    assert server.closed == (kind is M.CLOSE or kind not in _BEFORE_HELLO)


@pytest.mark.parametrize(
    "kind", [kind for kind in M if about_an_operation(kind)], ids=lambda kind: kind.name
)
def test_a_message_about_a_finished_operation_changes_and_answers_nothing(
    kind: MessageType,
) -> None:
    (mutation,) = [each for each in mutations(kind, IDS) if each.name == "after the terminal"]
    assert mutation.fate is Fate.ALIVE
    assert standing().server.receive(mutation.data) == []


@by_type
def test_a_flood_of_a_message_is_taken_without_a_growing_machine(kind: MessageType) -> None:
    data = raw_bytes(right(kind, IDS))
    server = standing().server
    answered = 0
    for _ in range(300):
        events = server.receive(data * 10)
        answered += len(replies(events))
        assert sum(isinstance(event, SubmitReceived) for event in events) <= 10
        if server.closed:
            break
    assert answered <= 2 * 3000
    assert len(server.session_ids) <= 2
    if not server.closed:
        assert server.in_flight(8, 1)


@by_type
def test_a_message_for_another_session_does_not_reach_the_operation_it_names(
    kind: MessageType,
) -> None:
    found = [each for each in mutations(kind, IDS) if each.name == "for another session"]
    for mutation in found:
        server = standing().server
        server.receive(mutation.data)
        if not server.closed:
            assert server.in_flight(7, 2)


def test_every_type_of_the_registry_has_mutations_of_each_kind() -> None:
    names = {kind: {each.name for each in mutations(kind, IDS)} for kind in M}
    for kind in M:
        assert {"as it should be", "twice", "body one byte longer", "no session"} <= names[kind]
    assert sum(map(len, names.values())) > 4000
