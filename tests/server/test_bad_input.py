"""Bad input of each kind gets its answer, and the operations beside it go on (wire digest 4, 6)."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from nnrp_sched.profile import SCHEMA_VERSION, Completed, Error, build_envelope
from nnrp_sched.transport.websocket_layer import packet_size
from nnrp_sched.wire import (
    Capability,
    ErrorCode,
    FrameSubmit,
    HintFlag,
    MessageType,
    Packet,
    RouteHint,
    Scheduling,
    SessionFailed,
    encode_document,
    encode_packet,
)
from nnrp_sched.wire.handshake import sdk_session_open
from tests.support.carriers import KINDS, NAMES, Place
from tests.support.raw_peer import RawPeer
from tests.support.serving import (
    SECONDS,
    InMemory,
    body,
    script,
    scripted_session,
)

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def beside_a_healthy_client(
    place: Place | None = None,
) -> AsyncGenerator[InMemory, None]:
    """A server on which another client's operation runs through whatever the block does."""
    async with scripted_session(place=place) as (served, session):
        healthy = session.chat(script(text="fine", hold=True), stream=True)
        await anext(healthy)
        yield served
        with anyio.fail_after(SECONDS):
            assert (await healthy.cancel()).status == "cancelled"
            after = await session.chat(body()).result()
            assert after.status == "completed"


NO_CAPABILITY = Capability(
    profile_id=0,
    count=0,
    cost_model=0,
    rank=0,
    limit_bytes=0,
    limit_units=0,
    body_bytes=0,
    flags=0,
)


def submit_packet(
    *, session_id: int, frame_id: int, operation_id: int, document: bytes | None = None
) -> bytes:
    """A well-formed submit that no state machine of ours has agreed to."""
    return encode_packet(
        Packet(
            MessageType.FRAME_SUBMIT,
            metadata=FrameSubmit(operation_id=operation_id),
            body=encode_document(document or build_envelope(body())),
            session_id=session_id,
            frame_id=frame_id,
        )
    )


BROKEN_FRAMING: dict[str, bytes] = {
    "garbage": b"GET / HTTP/1.1\r\nHost: nnrp.example\r\n\r\n" + b"\x00" * 64,
    "wrong version": b"NNRP\x02\x00\x01\x28" + b"\x00" * 32,
    "unknown message type": b"NNRP\x01\x00\xee\x28" + b"\x00" * 32,
    "wrong header length": b"NNRP\x01\x00\x01\x29" + b"\x00" * 32,
    "unknown flags": b"NNRP\x01\x00\x01\x28\x00\x00\x00\x80" + b"\x00" * 28,
    "a metadata length of 4 GiB": b"NNRP\x01\x00\x01\x28\x00\x00\x00\x00\xff\xff\xff\xff"
    + b"\x00" * 24,
    "a body over the limit": b"NNRP\x01\x00\x10\x28\x00\x00\x00\x00\x48\x00\x00\x00\xff\xff\xff\x7f"
    + b"\x00" * 20,
}


def is_message(place: Place, data: bytes) -> bool:
    """Whether bytes pass as a WebSocket's message: those of another size than they tell do not."""
    return NAMES.get(place.kind) != "websocket" or packet_size(data) == len(data)


@pytest.mark.parametrize("carrier", KINDS)
@pytest.mark.parametrize("kind", BROKEN_FRAMING)
async def test_broken_framing_ends_that_connection_with_a_fatal_error(
    kind: str, carrier: str, tmp_path: Path
) -> None:
    place = Place(carrier, tmp_path)
    async with beside_a_healthy_client(place) as served:
        peer = RawPeer(await served.carrier())
        await peer.send(BROKEN_FRAMING[kind])
        packets = await peer.read_to_the_end()
        if not is_message(place, BROKEN_FRAMING[kind]):
            assert packets == []
            assert "not one NNRP packet" in peer.carrier.problem
            return
        error, *rest = packets
        assert error.message_type is MessageType.ERROR
        assert getattr(error.metadata, "is_fatal", None) == 1
        assert [packet.message_type for packet in rest] == [MessageType.CLOSE]


@pytest.mark.parametrize("carrier", KINDS)
@pytest.mark.parametrize("kind", BROKEN_FRAMING)
async def test_broken_framing_in_a_session_aborts_its_operations_and_no_others(
    kind: str, carrier: str, tmp_path: Path
) -> None:
    place = Place(carrier, tmp_path)
    async with beside_a_healthy_client(place) as served:
        peer = RawPeer(await served.carrier())
        session_id = await peer.open()
        await peer.submit(session_id, script(text="x", hold=True) | {"stream": True})
        await peer.send(BROKEN_FRAMING[kind])
        packets = await peer.read_to_the_end()
        if is_message(place, BROKEN_FRAMING[kind]):
            assert packets[-1].message_type is MessageType.CLOSE
        with anyio.fail_after(SECONDS):
            while len(served.server.admission) > 1:
                await anyio.lowlevel.checkpoint()


async def test_a_submit_before_the_hello_is_a_fatal_error() -> None:
    async with beside_a_healthy_client() as served:
        peer = RawPeer(served.dial())
        await peer.send(submit_packet(session_id=1, frame_id=1, operation_id=1))
        error, *_ = await peer.read_to_the_end()
        assert error.message_type is MessageType.ERROR
        assert getattr(error.metadata, "code", None) == ErrorCode.INVALID_STATE


async def test_a_packet_for_an_unknown_session_is_answered_and_the_connection_lives() -> None:
    async with beside_a_healthy_client() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        await peer.send(encode_packet(Packet(MessageType.PING, session_id=session_id + 77)))
        frame_id = await peer.submit(session_id, body())
        _, terminal = await peer.result(frame_id)
        assert isinstance(terminal, Completed)
        errors = [p for p in peer.packets if p.message_type is MessageType.ERROR]
        assert len(errors) == 1
        assert getattr(errors[0].metadata, "is_fatal", None) == 0


async def test_a_reused_frame_id_fails_that_session_and_leaves_the_connection_s_others() -> None:
    async with beside_a_healthy_client() as served:
        peer = RawPeer(served.dial())
        bad, good = await peer.open(), await peer.open_session()
        held = await peer.submit(good, script(text="x", hold=True) | {"stream": True})
        document = build_envelope(script(hold=True) | {"stream": True})
        _, submit = peer.wire.submit(bad, document, operation_id=5)
        await peer.send(submit)
        await peer.send(submit)
        failed = await peer.expect(SessionFailed)
        assert failed.session_id == bad
        await peer.send(peer.wire.cancel(good, held))
        await peer.result(held)
        frame_id = await peer.submit(good, body())
        _, terminal = await peer.result(frame_id)
        assert isinstance(terminal, Completed)


async def test_a_reused_operation_id_is_refused_and_the_first_operation_goes_on() -> None:
    async with beside_a_healthy_client() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        first = await peer.submit(session_id, script(text="x", hold=True) | {"stream": True})
        submitted = 1001  # The peer's first operation id.
        # Made first: the answer to a frame it never sent ends the peer's own machine.
        cancel = peer.wire.cancel(session_id, first)
        await peer.send(
            submit_packet(session_id=session_id, frame_id=first + 1, operation_id=submitted)
        )
        refused = await peer.until_terminal(first + 1)
        assert b"duplicate_operation_id" in refused.body
        assert peer.terminals(first) == []
        await peer.send(cancel)
        ended = await peer.until_terminal(first)
        assert b"response.cancelled" in ended.body


DOCUMENTS: dict[str, tuple[bytes, str]] = {
    "bad UTF-8": (b'{"schema_version": "\xff\xfe"}', "invalid_submit_body"),
    "bad JSON": (b'{"schema_version": ', "invalid_submit_body"),
    "no object": (b"[1, 2, 3]", "invalid_submit_body"),
    "trailing bytes": (build_envelope(body()) + b"{}", "invalid_submit_body"),
    "deep nesting": (b"[" * 5000 + b"]" * 5000, "invalid_submit_body"),
    "another schema": (b'{"schema_version":"other/1"}', "unsupported_schema_version"),
    "an operation of level 2": (
        build_envelope(body(), operation="responses.create"),
        "unsupported_operation",
    ),
    "no messages": (build_envelope({"model": "example-model"}), "missing_messages"),
    "no model": (build_envelope({"messages": [{"role": "user"}]}), "missing_model"),
    "a negative timeout": (build_envelope(body(), timeout_ms=-1), "invalid_nnrp_policy"),
    "an unknown model": (build_envelope(body() | {"model": "nobody"}), "unsupported_model"),
    "a body the engine rejects": (build_envelope(body(n=0)), "invalid_backend_request"),
    "an unknown envelope field": (
        msgspec.json.encode(
            {
                "schema_version": SCHEMA_VERSION,
                "operation": "chat.completions.create",
                "body": body(),
                "surprise": 1,
            }
        ),
        "invalid_request_envelope",
    ),
    "an unknown control request": (
        b'{"schema_version":"nnrp-sched-control/1","operation":"engine.explode"}',
        "unsupported_operation",
    ),
    "a malformed control request": (
        b'{"schema_version":"nnrp-sched-control/1","operation":7}',
        "invalid_request_envelope",
    ),
}


@pytest.mark.parametrize("kind", DOCUMENTS)
async def test_a_document_that_cannot_be_served_ends_in_its_error_code(kind: str) -> None:
    document, code = DOCUMENTS[kind]
    async with beside_a_healthy_client() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit_document(session_id, document)
        _, terminal = await peer.result(frame_id)
        assert isinstance(terminal, Error)
        assert terminal.error.code == code
        assert terminal.error.message
        again = await peer.submit(session_id, body())
        _, completed = await peer.result(again)
        assert isinstance(completed, Completed)


_GARBAGE = b"GET / HTTP/1.1"
_CLOSE = encode_packet(Packet(MessageType.CLOSE))
_REQUEST = encode_packet(
    Packet(
        MessageType.SESSION_OPEN,
        sdk_session_open(priority=1, max_in_flight=4, requested_session_id=0),
    )
)
ENDED_UNDER_IT: dict[str, Callable[[int], bytes]] = {
    "a faulty submit, then its frame id again": lambda session_id: faulty_submit(session_id) * 2,
    "a submit, then its frame id again": lambda session_id: plain_submit(session_id) * 2,
    "a faulty submit, then CLOSE": lambda session_id: faulty_submit(session_id) + _CLOSE,
    "a submit, then garbage": lambda session_id: plain_submit(session_id) + _GARBAGE,
    "a session request, then CLOSE": lambda _: _REQUEST + _CLOSE,
    "a session request, then garbage": lambda _: _REQUEST + _GARBAGE,
    "a negotiation, then CLOSE": lambda session_id: negotiation(session_id) + _CLOSE,
    "a negotiation, then what fails its session": lambda session_id: (
        negotiation(session_id) + plain_submit(session_id) * 2
    ),
}
"""One write a kind: a request, and behind it what ends its session or the connection."""


def plain_submit(session_id: int) -> bytes:
    """A submit that can be served."""
    return submit_packet(session_id=session_id, frame_id=1, operation_id=7)


def faulty_submit(session_id: int) -> bytes:
    """A submit whose document is none."""
    return submit_packet(session_id=session_id, frame_id=1, operation_id=7, document=b"junk")


def unsupported(session_id: int, frame_id: int) -> bytes:
    """A request that the server refuses as unsupported: to run on a certain route."""
    must_honor = RouteHint(
        operation_id=1001,
        route_id=3,
        executor_class=0,
        affinity_class=0,
        deadline_unix_ms=0,
        body_bytes=0,
        flags=HintFlag.MUST_HONOR,
    )
    return encode_packet(
        Packet(MessageType.ROUTE_HINT, must_honor, session_id=session_id, frame_id=frame_id)
    )


def negotiation(session_id: int) -> bytes:
    """A request that the server answers, of a form that accepts nothing."""
    return encode_packet(
        Packet(MessageType.CAPABILITY_NEGOTIATION, NO_CAPABILITY, session_id=session_id)
    )


@pytest.mark.parametrize("kind", ENDED_UNDER_IT)
async def test_a_request_whose_end_came_in_the_same_bytes_harms_nobody(kind: str) -> None:
    async with beside_a_healthy_client() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        await peer.send(ENDED_UNDER_IT[kind](session_id))
        await peer.carrier.aclose()
        with anyio.fail_after(SECONDS):
            while len(served.server.connections) > 1:
                await anyio.lowlevel.checkpoint()


async def test_nothing_follows_the_terminal_of_a_faulty_submit() -> None:
    async with beside_a_healthy_client() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        deadline = Scheduling(
            operation_id=7,
            control_sequence=1,
            priority_class=1,
            priority_delta=0,
            deadline_unix_ms=1,
            flags=0,
        )
        await peer.send(
            faulty_submit(session_id)
            + encode_packet(
                Packet(MessageType.DEADLINE, deadline, session_id=session_id, frame_id=1)
            )
        )
        await peer.until_terminal(1)
        await peer.open_session()
        about_it = [packet.message_type for packet in peer.packets if packet.frame_id == 1]
        assert about_it == [MessageType.RESULT_PUSH]


async def test_unknown_nnrp_keys_are_ignored() -> None:
    extensions: dict[str, Any] = {"workflow": {"agent": "explorer"}, "cancel_after_events": 1}
    async with scripted_session() as (_, session):
        with anyio.fail_after(SECONDS):
            outcome = await session.chat(body(), extensions=extensions).result()
    assert outcome.status == "completed"


async def test_requests_the_server_does_not_offer_are_answered_as_unsupported() -> None:
    async with beside_a_healthy_client() as served:
        peer = RawPeer(served.dial())
        session_id = await peer.open()
        frame_id = await peer.submit(session_id, script(text="x", hold=True) | {"stream": True})
        await peer.send(unsupported(session_id, frame_id))
        await peer.send(peer.wire.cancel(session_id, frame_id))
        await peer.result(frame_id)
        refused = [p for p in peer.packets if p.message_type is MessageType.ERROR_RECOVERABLE]
        assert [packet.body for packet in refused] == [b"route_hint_unsupported"]
