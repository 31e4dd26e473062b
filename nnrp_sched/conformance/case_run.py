"""One case over the wire: submit, listen, cancel where the recipe says so, close."""

import json
from typing import Final

import anyio

from nnrp_sched.conformance.peer import Peer
from nnrp_sched.conformance.recipe import Case, Outcome
from nnrp_sched.conformance.seen import Seen
from nnrp_sched.conformance.stream import Stream
from nnrp_sched.errors import ConnectionLost
from nnrp_sched.profile.envelope import SCHEMA_VERSION
from nnrp_sched.profile.json_values import JsonObject
from nnrp_sched.wire import (
    ClientEvent,
    ConnectionCloseReceived,
    ConnectionFailed,
    ControlReceived,
    ErrorCode,
    MessageType,
    OperationFailed,
    PartialReceived,
    ResultDropped,
    ResultReceived,
    SessionFailed,
)

CANCEL_AFTER: Final = "cancel_after_events"
"""The key of `nnrp` by which the suite tells its runner to cancel; it is not sent."""

MOST_EVENTS: Final = 100_000
"""A stream longer than this never ends; no case asks for one that comes near it."""

_TERMINALS: Final = frozenset(
    {
        MessageType.RESULT_PUSH,
        MessageType.RESULT_DROP,
        MessageType.RESULT_DROP_REASON,
        MessageType.ERROR,
    }
)
_DROPPED_AS: Final[dict[str, Outcome]] = {"peer_cancelled": "cancelled"}
"""How a drop ends an operation; every other reason is an error."""


async def run_case(case: Case, peer: Peer, seen: Seen, seconds: float) -> None:
    """Run a case and note what came into `seen`; each wait ends after `seconds`."""
    run = _CaseRun(case, peer, seen)
    with anyio.move_on_after(seconds) as limit:
        await run.to_the_end(limit, seconds)
    if limit.cancelled_caught:
        seen.faults.append(f"no terminal, and nothing for {seconds:g} s")
    if seen.terminal is None or seen.protocol_error is not None:
        return
    with anyio.move_on_after(seconds) as limit:
        await peer.close_session()
    if limit.cancelled_caught:
        seen.faults.append(f"no SESSION_CLOSE_ACK in {seconds:g} s")
    run.note_late_packets()


def document_of(case: Case) -> bytes:
    """What the case submits."""
    harness = case.request.harness
    if harness.document_hex is not None:
        return bytes.fromhex(harness.document_hex)
    if harness.document is not None:
        return harness.document.encode()
    envelope: JsonObject = {
        "schema_version": SCHEMA_VERSION,
        "operation": case.operation,
        "body": case.request.body,
    }
    policy = {name: value for name, value in case.request.nnrp.items() if name != CANCEL_AFTER}
    if policy:
        envelope["nnrp"] = policy
    document = {**envelope, **harness.envelope}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name.lower()
    except ValueError:
        return f"{code:#x}"


class _CaseRun:
    def __init__(self, case: Case, peer: Peer, seen: Seen) -> None:
        self._case = case
        self._peer = peer
        self._seen = seen
        self._stream = Stream(events=seen.events, faults=seen.faults)
        self._frame_id = 0

    async def to_the_end(self, limit: anyio.CancelScope, seconds: float) -> None:
        """Send the request and listen until the operation, or the connection, has ended.

        Each event moves the limit: how long an answer takes is up to the model and the machine.
        """
        harness = self._case.request.harness
        if harness.negotiate:
            await self._peer.negotiate(harness.negotiate)
        if harness.packet_hex is not None:
            await self._peer.send(bytes.fromhex(harness.packet_hex))
        else:
            document = document_of(self._case)
            self._frame_id = await self._peer.submit(document, harness.framing)
        cancel_after = self._case.request.nnrp.get(CANCEL_AFTER)
        for _ in range(MOST_EVENTS):
            if cancel_after is not None and len(self._seen.events) >= cancel_after:
                cancel_after = None
                await self._peer.cancel(self._frame_id, harness.cancel)
            event = await self._peer.next_event()
            if event is None:
                raise ConnectionLost("the server closed the connection before a terminal")
            self._take(event)
            if self._seen.terminal is not None:
                return
            limit.deadline = anyio.current_time() + seconds
        self._seen.faults.append(f"no terminal after {MOST_EVENTS} events")

    def _take(self, event: ClientEvent) -> None:
        seen = self._seen
        match event:
            case PartialReceived(result_sequence=sequence, body=body):
                self._stream.partial(body, sequence)
            case ResultReceived(fault=str(fault)):
                seen.faults.append(f"the RESULT_PUSH's body: {fault}")
                seen.terminal = "error"
            case ResultReceived(document=None):
                seen.terminal = "success"
            case ResultReceived(document=bytes(document), status_code=status):
                seen.status_code = status
                seen.terminal = self._stream.document(document) or "error"
            case ResultDropped(reason=reason):
                seen.drop_reason = reason.name.lower() if reason is not None else "none"
                seen.terminal = _DROPPED_AS.get(seen.drop_reason, "error")
            case OperationFailed(diagnostic=diagnostic) | SessionFailed(diagnostic=diagnostic):
                seen.faults.append(f"the operation failed: {diagnostic}")
                seen.terminal = "error"
            case ConnectionFailed(error=error):
                seen.protocol_error = _name_of(error.code)
                seen.terminal = "error"
            case ConnectionCloseReceived(diagnostic=diagnostic):
                seen.faults.append(f"the server closed the connection: {diagnostic}")
                seen.terminal = "error"
            case ControlReceived(packet=packet):
                seen.notices.append(packet.message_type.name)
            case _:
                seen.notices.append(type(event).__name__)

    def note_late_packets(self) -> None:
        """After its terminal nothing may come for an operation (wire digest 4.4, T7)."""
        packets = [each for each in self._peer.packets if each.frame_id == self._frame_id]
        kinds = [packet.message_type for packet in packets]
        terminal = next((n for n, kind in enumerate(kinds) if kind in _TERMINALS), len(kinds))
        for kind in kinds[terminal + 1 :]:
            self._seen.faults.append(f"{kind.name} came after the terminal")
