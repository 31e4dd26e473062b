"""How an operation says its last word: from what ended it to the one message that tells so."""

import logging
from typing import Protocol

from nnrp_sched.errors import LocalProtocolError, ProfileError
from nnrp_sched.profile import Cancelled as CancelledEvent
from nnrp_sched.profile import Completed, encode_event, error_document, profile_error
from nnrp_sched.server.ending import TERMINALS, Cancelled, Dropped, Ending, Failed, Silent
from nnrp_sched.wire import DropReason

logger = logging.getLogger(__name__)

Verdict = Completed | ProfileError | Cancelled | Dropped | Silent
"""What ends an operation; a `Failed` ending has become its `ProfileError`."""

FAULT = "the server failed while serving this request"
"""What a peer is told of a fault in our code or the engine's; the log has the rest."""

_STATUS_OK = 200
_STATUS_CANCELLED = 499


class OperationChannel(Protocol):
    """How an operation talks to its peer; the connection binds it to a session and a frame."""

    @property
    def full(self) -> bool:
        """Whether the peer reads too slowly for more events now."""
        ...

    async def room(self) -> None:
        """Wait until the peer has read enough."""
        ...

    def send_partial(self, document: bytes) -> None:
        """Send one event."""
        ...

    def send_terminal(self, document: bytes, status_code: int) -> None:
        """Send the terminal document."""
        ...

    def send_drop(self, reason: DropReason, diagnostic: str) -> None:
        """End the operation with RESULT_DROP_REASON."""
        ...


def verdict(outcome: Verdict, ending: Ending | None) -> Verdict:
    """What ends an operation: an ending from outside beats the outcome of its work."""
    if ending is None:
        return outcome
    terminal = TERMINALS[ending]
    if isinstance(terminal, Failed):
        return profile_error(terminal.code, terminal.message)
    return terminal


def send_verdict(channel: OperationChannel, final: Verdict) -> Verdict:
    """Send the one terminal, or when it cannot be written the error that says so; which it was."""
    try:
        _send(channel, final)
        return final
    except LocalProtocolError as error:
        fault = f"the answer cannot be sent: {error}"
        instead = profile_error("adapter_runtime_error", fault)
    except Exception:
        # What the engine answered is no JSON.
        logger.exception("an answer of the engine cannot be encoded")
        instead = profile_error("adapter_runtime_error", FAULT)
    _send(channel, instead)
    return instead


def _send(channel: OperationChannel, final: Verdict) -> None:
    match final:
        case Completed() as completed:
            channel.send_terminal(encode_event(completed), _STATUS_OK)
        case ProfileError() as failure:
            channel.send_terminal(encode_event(error_document(failure)), failure.status)
        case Cancelled(reason):
            channel.send_terminal(encode_event(CancelledEvent(reason=reason)), _STATUS_CANCELLED)
        case Dropped(reason, diagnostic):
            channel.send_drop(reason, diagnostic)
        case Silent():
            pass
