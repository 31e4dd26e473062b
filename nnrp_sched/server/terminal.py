"""How an operation says its last word: from what ended it to the one message that tells so."""

import logging
from typing import Protocol

from msgspec import Struct

from nnrp_sched.errors import ProfileError
from nnrp_sched.profile import Cancelled as CancelledEvent
from nnrp_sched.profile import Completed, encode_event, error_document, profile_error
from nnrp_sched.server.budget import spent
from nnrp_sched.server.ending import TERMINALS, Cancelled, Dropped, Ending, Failed, Silent
from nnrp_sched.wire import DropReason, ProgressStage

logger = logging.getLogger(__name__)

Verdict = Completed | ProfileError | Cancelled | Dropped | Silent
"""What ends an operation; a `Failed` ending has become its `ProfileError`."""

FAULT = "the server failed while serving this request"
"""What a peer is told of a fault in our code or the engine's; the log has the rest."""

_OVERLOADED = frozenset({"backend_overload", "scheduler_rejected", "adapter_operation_limit"})
"""Errors that another try later may not meet (profile, section 10)."""

_DOCUMENT_LIMIT = 64 * 1024 * 1024 - 1024
"""What fits into a packet beside its header and what describes it (wire digest 1.1)."""

_STATUS_OK = 200
_STATUS_CANCELLED = 499


class OperationChannel(Protocol):
    """How an operation talks to its peer; the connection binds it to a session and a frame."""

    @property
    def waiting(self) -> bool:
        """Whether events wait for the peer."""
        ...

    @property
    def full(self) -> bool:
        """Whether as many wait as may; `room` is to be awaited before more are sent."""
        ...

    async def room(self) -> bool:
        """Wait until half of the queue is free; False when the peer reads too slowly for that."""
        ...

    async def flushed(self) -> bool:
        """Wait until nothing waits; False when the peer reads too slowly for that."""
        ...

    def discard(self) -> None:
        """Forget the events that wait."""
        ...

    def send_partial(self, document: bytes) -> None:
        """Send one event."""
        ...

    def mute(self) -> None:
        """Forget them, and send none any more."""
        ...

    def send_progress(self, stage: ProgressStage) -> None:
        """Tell how far the operation is, to who negotiated it."""
        ...

    def send_overload(self, diagnostic: str) -> None:
        """Say that the server is too busy, before the terminal that refuses."""
        ...

    def send_terminal(self, document: bytes, status_code: int) -> None:
        """Send the terminal document."""
        ...

    def send_drop(self, reason: DropReason, diagnostic: str) -> None:
        """End the operation with RESULT_DROP_REASON."""
        ...


def verdict(outcome: Verdict, ending: Ending | None, diagnostic: str = "") -> Verdict:
    """What ends an operation: an ending from outside beats the outcome of its work.

    Only a spent budget leaves the answer as far as it came. `diagnostic` is what a drop says
    instead of its usual words.
    """
    if ending is None:
        return outcome
    if ending is Ending.BUDGET and isinstance(outcome, Completed):
        return spent(outcome)
    terminal = TERMINALS[ending]
    if isinstance(terminal, Dropped) and diagnostic:
        return Dropped(terminal.reason, diagnostic)
    if isinstance(terminal, Failed):
        return profile_error(terminal.code, terminal.message)
    return terminal


class LastWord(Struct, frozen=True):
    """A verdict and the document that tells it, empty where there is none."""

    verdict: Verdict
    document: bytes = b""


def last_word(final: Verdict) -> LastWord:
    """Write the terminal down; when that cannot be done, the error that says so."""
    try:
        word = LastWord(final, _document(final))
    except Exception:
        # What the engine answered is no JSON.
        logger.exception("an answer of the engine cannot be encoded")
        return _error_instead(FAULT)
    if len(word.document) > _DOCUMENT_LIMIT:
        return _error_instead(f"the answer cannot be sent: it has {len(word.document)} bytes")
    return word


def send_last(channel: OperationChannel, word: LastWord) -> None:
    """Send the one terminal."""
    match word.verdict:
        case Completed():
            channel.send_terminal(word.document, _STATUS_OK)
        case ProfileError() as failure:
            if failure.code in _OVERLOADED:
                channel.send_overload(failure.message)
            channel.send_terminal(word.document, failure.status)
        case Cancelled():
            channel.send_terminal(word.document, _STATUS_CANCELLED)
        case Dropped(reason, diagnostic):
            channel.send_drop(reason, diagnostic)
        case Silent():
            pass


def send_verdict(channel: OperationChannel, final: Verdict) -> Verdict:
    """Send the one terminal, or when it cannot be written the error that says so; which it was."""
    word = last_word(final)
    send_last(channel, word)
    return word.verdict


def _document(final: Verdict) -> bytes:
    match final:
        case Completed():
            return encode_event(final)
        case ProfileError():
            return encode_event(error_document(final))
        case Cancelled(reason):
            return encode_event(CancelledEvent(reason=reason))
        case _:
            return b""


def _error_instead(message: str) -> LastWord:
    error = profile_error("adapter_runtime_error", message)
    return LastWord(error, _document(error))
