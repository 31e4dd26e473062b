"""What holds for any bytes, any cutting and any order of commands, on both machines."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire import (
    CancelReceived,
    CapabilitiesAgreed,
    CapabilityToken,
    ClientConnection,
    ConnectionFailed,
    ControlReceived,
    DropReason,
    Limits,
    OperationFailed,
    Packet,
    PartialReceived,
    ProgressStage,
    Reply,
    ResultDropped,
    ResultReceived,
    ServerConnection,
    SessionClosed,
    SessionCloseReceived,
    SessionErrorCode,
    SessionFailed,
    SessionOpened,
    SessionOpenReceived,
    SubmitReceived,
    encode_packet,
)
from nnrp_sched.wire.enums import MessageType
from tests.support.wire_machines import Pair, only, packets, replies, with_operation
from tests.support.wire_packets import SUPPORTED, legal_packets, raw_bytes, sample

M = MessageType
Machine = ServerConnection | ClientConnection

STARTS: dict[str, Callable[[], Machine]] = {
    "a new server": ServerConnection,
    "a new client": ClientConnection,
    "a server with an operation": lambda: with_operation().server,
    "a client with an operation": lambda: with_operation().client,
}
machines = pytest.mark.parametrize("start", STARTS)


def feed(machine: Machine, *pieces: bytes) -> list[Any]:
    """Every event of the pieces and of the end; what the machine answers is whole packets."""
    events: list[Any] = []
    for piece in pieces:
        events.extend(machine.receive(piece))
    events.extend(machine.receive_end())
    replies(events)
    failures = [event for event in events if isinstance(event, ConnectionFailed)]
    assert failures == [] or events[-1:] == failures
    return events


@machines
@given(data=st.binary(max_size=300))
def test_random_bytes_give_events_and_nothing_else(start: str, data: bytes) -> None:
    feed(STARTS[start](), data)


@machines
@given(packet=st.sampled_from(SUPPORTED).flatmap(legal_packets))
def test_any_legal_packet_gives_events_and_nothing_else(start: str, packet: Packet) -> None:
    feed(STARTS[start](), encode_packet(packet))


@st.composite
def near_misses(draw: st.DrawFn) -> bytes:
    """A stream of samples for the operation in flight, with some bytes changed."""
    kinds = draw(st.lists(st.sampled_from(list(M)), min_size=1, max_size=5))
    data = bytearray(b"".join(encode_packet(sample(kind)) for kind in kinds))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data) - 1))
        data[place] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, data[place] ^ 1]))
    cut = draw(st.integers(0, len(data)))
    return bytes(data[: cut or len(data)])


@machines
@given(data=near_misses())
@settings(max_examples=300)
def test_packets_with_changed_bytes_give_events_and_nothing_else(start: str, data: bytes) -> None:
    feed(STARTS[start](), data)


@machines
@given(data=near_misses(), cuts=st.sets(st.integers(0, 700), max_size=8))
def test_any_cutting_of_the_bytes_gives_the_same_events(
    start: str, data: bytes, cuts: set[int]
) -> None:
    places = sorted(min(cut, len(data)) for cut in cuts)
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    whole = [comparable(event) for event in feed(STARTS[start](), data)]
    assert [comparable(event) for event in feed(STARTS[start](), *pieces)] == whole


def comparable(event: Any) -> Any:
    """An event as a value; requests and errors compare by identity otherwise."""
    if isinstance(event, ConnectionFailed):
        return (str(event.error), event.error.code, event.error.scope)
    if isinstance(event, SessionOpenReceived):
        return (event.open, event.body)
    return event


@given(kind=st.sampled_from([M.FRAME_SUBMIT, M.CANCEL, M.PARTIAL_RESULT]), bit=st.integers(0, 2000))
def test_one_flipped_bit_never_reaches_another_operation(kind: MessageType, bit: int) -> None:
    pair = with_operation()
    pair.submit(operation_id=5)
    data = bytearray(raw_bytes(sample(kind, session_id=7)))
    place = bit // 8 % len(data)
    data[place] ^= 1 << bit % 8
    for event in pair.server.receive(bytes(data)):
        if isinstance(event, CancelReceived):
            assert (event.frame_id, event.operation_id) == (1, 901)
        if isinstance(event, SubmitReceived):
            assert event.frame_id > 2


# --- both machines back to back -----------------------------------------------------------------

SIZES = (10**6, 10**6, 130, 40, 1)
"""Pieces in which bytes are delivered, the first two being all of them."""

OFFERS = frozenset({CapabilityToken.PROGRESS_PARTIAL, CapabilityToken.CREDIT_BACKPRESSURE})
LIMITS = Limits(max_sessions=3, max_in_flight=4, tombstones=8)
Frame = tuple[int, int]


class BackToBack:
    """Commands in any order on both ends, bytes delayed at will: the two never disagree.

    Whatever is sent is legal by construction of the machines, so no fault may ever be seen, every
    operation ends exactly once, and its events arrive complete and in order.
    """

    def __init__(self) -> None:
        pair = Pair(LIMITS, offers=OFFERS)
        self.server, self.client = pair.server, pair.client
        self.to_server, self.to_client = bytearray(), bytearray()
        for session_id in (1, 2):
            pair.open(session_id, max_in_flight=3)
        self.next_session = 3
        self.requests: list[SessionOpenReceived] = []
        self.closing: list[int] = []
        self.frames: list[Frame] = []
        self.in_flight: set[Frame] = set()
        self.sent: dict[Frame, list[bytes]] = {}
        self.received: dict[Frame, list[bytes]] = {}
        self.ended: dict[Frame, int] = {}
        self.aborted: set[Frame] = set()

    def frame(self, choice: int) -> Frame:
        """One of the last frames, finished or not; before the first, one that never was."""
        return self.frames[-1 - choice % min(6, len(self.frames))] if self.frames else (1, 1)

    def attempt(self, wire: bytearray, command: Callable[[], bytes]) -> bool:
        """Send what a command gives; a refused command gives nothing."""
        try:
            data = command()
        except LocalProtocolError:
            return False
        wire += data
        return True

    # --- the client's commands

    def open_session(self, _choice: int) -> None:
        self.attempt(self.to_server, lambda: self.client.open_session(max_in_flight=3))

    def submit(self, choice: int) -> None:
        sessions = self.client.session_ids or (99,)
        session_id = sessions[choice % len(sessions)]
        operation_id = len(self.frames) + 1
        try:
            frame_id, data = self.client.submit(session_id, b"{}", operation_id=operation_id)
        except LocalProtocolError:
            return
        self.to_server += data
        frame = (session_id, frame_id)
        self.frames.append(frame)
        self.ended[frame] = 0
        self.received[frame] = []
        self.sent[frame] = []

    def cancel(self, choice: int) -> None:
        frame = self.frame(choice // 3)
        how = ("cancel", "abort", "frame_cancel")[choice % 3]
        if self.attempt(self.to_server, lambda: getattr(self.client, how)(*frame)):
            self.aborted.update({frame} if how == "abort" else ())

    def close_session(self, choice: int) -> None:
        sessions = self.client.session_ids or (99,)
        session_id = sessions[choice % len(sessions)]
        self.attempt(self.to_server, lambda: self.client.close_session(session_id))

    def say(self, choice: int) -> None:
        """Any other message about an operation."""
        session_id, frame_id = self.frame(choice // len(_SAID))
        say = _SAID[choice % len(_SAID)]
        self.attempt(self.to_server, lambda: say(self.client, session_id, frame_id))

    def negotiate(self, choice: int) -> None:
        wish = [*OFFERS][: choice % 3]
        sessions = self.client.session_ids or (99,)
        session_id = sessions[choice % len(sessions)]
        self.attempt(self.to_server, lambda: self.client.negotiate(session_id, wish))

    # --- the server's commands

    def answer_session(self, choice: int) -> None:
        if not self.requests:
            return
        request = self.requests.pop(0)
        if choice % 4:
            self.to_client += self.server.accept_session(
                request, self.next_session, max_in_flight=4, operation_credit=4
            )
            self.next_session += 1
        else:
            code = SessionErrorCode.LIMIT_REACHED
            self.to_client += self.server.reject_session(request, code, "no")

    def partial_result(self, choice: int) -> None:
        frame, body = self.frame(choice), b"%d" % choice
        if self.attempt(self.to_client, lambda: self.server.partial_result(*frame, body)):
            self.sent[frame].append(body)

    def push_result(self, choice: int) -> None:
        frame, document = self.frame(choice), b"{}" if choice % 2 else None
        done = self.attempt(self.to_client, lambda: self.server.push_result(*frame, document))
        assert done == (frame in self.in_flight)
        self.in_flight.discard(frame)

    def drop_result(self, choice: int) -> None:
        frame, reason = self.frame(choice), DropReason(1 + choice % 9)
        done = self.attempt(self.to_client, lambda: self.server.drop_result(*frame, reason))
        assert done == (frame in self.in_flight)
        self.in_flight.discard(frame)

    def acknowledge_close(self, choice: int) -> None:
        for session_id in tuple(self.closing):
            if choice % 2:
                for frame_id in self.server.abandon_operations(session_id):
                    self.in_flight.remove((session_id, frame_id))
            acknowledge = partial(self.server.acknowledge_session_close, session_id)
            if self.attempt(self.to_client, acknowledge):
                self.closing.remove(session_id)

    def advise(self, choice: int) -> None:
        """Progress of an operation, or credit of its session, where that was negotiated."""
        session_id, frame_id = self.frame(choice)
        agreed = self.server.capabilities(session_id)
        if choice % 2:
            token = CapabilityToken.CREDIT_BACKPRESSURE
            done = self.attempt(
                self.to_client, lambda: self.server.credit_update(session_id, choice)
            )
        else:
            token = CapabilityToken.PROGRESS_PARTIAL
            stage = ProgressStage.EXECUTING
            done = self.attempt(
                self.to_client, lambda: self.server.progress(session_id, frame_id, stage)
            )
        assert not done or token in agreed

    # --- the bytes in between

    def deliver_to_server(self, choice: int) -> None:
        size = SIZES[choice % len(SIZES)]
        events = self.server.receive(bytes(self.to_server[:size]))
        del self.to_server[:size]
        for event in events:
            if isinstance(event, SessionOpenReceived):
                self.requests.append(event)
            elif isinstance(event, SubmitReceived):
                assert event.fault is None
                self.in_flight.add((event.session_id, event.frame_id))
            elif isinstance(event, SessionCloseReceived):
                self.closing.append(event.session_id)
            elif isinstance(event, CancelReceived | ControlReceived):
                assert (event.session_id, event.frame_id) in self.in_flight
            elif not isinstance(event, CapabilitiesAgreed):
                # A refusal of a session above the limit, or an agreement; never an error.
                assert isinstance(event, Reply), event
                assert {p.message_type for p in packets(event.data)} <= _REPLIES
                self.to_client += event.data

    def deliver_to_client(self, choice: int) -> None:
        size = SIZES[choice % len(SIZES)]
        events = self.client.receive(bytes(self.to_client[:size]))
        del self.to_client[:size]
        for event in events:
            assert not isinstance(
                event, Reply | ConnectionFailed | SessionFailed | OperationFailed
            ), event
            if isinstance(event, ControlReceived) and event.frame_id:
                # Nothing about an operation follows its terminal.
                assert self.ended[event.session_id, event.frame_id] == 0
            if isinstance(event, PartialReceived):
                frame = (event.session_id, event.frame_id)
                assert self.ended[frame] == 0
                self.received[frame].append(event.body)
                assert event.result_sequence == len(self.received[frame])
            elif isinstance(event, ResultReceived | ResultDropped):
                frame = (event.session_id, event.frame_id)
                self.ended[frame] += 1
                if frame not in self.aborted:
                    assert self.received[frame] == self.sent[frame]
            elif isinstance(event, SessionClosed):
                for frame_id in event.frame_ids:
                    self.ended[event.session_id, frame_id] += 1

    def check(self) -> None:
        """What holds after every step."""
        assert all(count <= 1 for count in self.ended.values())
        for frame, bodies in self.received.items():
            assert self.sent[frame][: len(bodies)] == bodies

    def finish(self) -> None:
        """Let everything end: each operation has exactly one end, and the sessions agree."""
        for _ in range(3):
            self.deliver_to_server(0)
            while self.requests:
                self.answer_session(1)
            for place in range(len(self.frames)):
                self.attempt(
                    self.to_client, partial(self.server.push_result, *self.frames[place], None)
                )
            self.acknowledge_close(0)
            self.deliver_to_client(0)
        assert all(count == 1 for count in self.ended.values()), self.ended
        assert set(self.client.session_ids) == set(self.server.session_ids)


_REPLIES = {M.SESSION_OPEN_ACK, M.CAPABILITY_NEGOTIATION, M.DEGRADE_PROFILE}
_SAID: list[Callable[[ClientConnection, int, int], bytes]] = [
    lambda client, session_id, frame_id: client.deadline(session_id, frame_id, 1),
    lambda client, session_id, frame_id: client.expire_at(session_id, frame_id, 1),
    lambda client, session_id, frame_id: client.priority_update(session_id, frame_id, 2, -1),
    lambda client, session_id, frame_id: client.supersede(session_id, frame_id, 10_000),
    lambda client, session_id, frame_id: client.budget_update(session_id, frame_id, 7),
    lambda client, session_id, frame_id: client.trace_context(session_id, frame_id, 5, 6),
]

STEPS: dict[str, int] = {
    **{"submit": 5, "partial_result": 8, "push_result": 2, "drop_result": 1, "cancel": 2},
    **{"deliver_to_server": 6, "deliver_to_client": 6, "open_session": 2, "answer_session": 2},
    **{"close_session": 1, "acknowledge_close": 1, "say": 3, "negotiate": 1, "advise": 4},
}
"""How often each step is tried."""

steps = st.lists(
    st.tuples(
        st.sampled_from([name for name, weight in STEPS.items() for _ in range(weight)]),
        st.integers(0, 99),
    ),
    min_size=30,
    max_size=120,
)


@given(sequence=steps)
@settings(max_examples=200, deadline=None)
def test_machines_back_to_back_agree_and_each_operation_ends_once(
    sequence: list[tuple[str, int]],
) -> None:
    both = BackToBack()
    for name, choice in sequence:
        getattr(both, name)(choice)
        both.check()
    both.finish()


def test_an_opened_session_has_the_same_id_on_both_ends() -> None:
    pair = Pair()
    request = only(pair.server.receive(pair.client.open_session()), SessionOpenReceived)
    data = pair.server.accept_session(request, 3, max_in_flight=1, operation_credit=1)
    assert only(pair.client.receive(data), SessionOpened).session_id == 3
    assert pair.client.session_ids == pair.server.session_ids == (3,)
