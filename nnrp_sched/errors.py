"""Every exception of the project, each with what a caller needs to act on it.

Three layers fail in three ways and never borrow each other's form: the protocol (a packet broke a
rule of NNRP/1), the profile (a request gets an OpenAI-shaped error object) and the program (a
command ends with an exit code).
"""

from typing import Any, ClassVar


class NnrpSchedError(Exception):
    """Base of every error raised on purpose by this project."""

    exit_code: ClassVar[int] = 1
    """What a command returns when this error ends it (design: command line)."""


# --- protocol: NNRP/1 ---------------------------------------------------------------------------


class WireError(NnrpSchedError):
    """A rule of NNRP/1 was broken.

    `code` is a `wire.enums.ErrorCode`, `scope` a `wire.enums.ErrorScope` (wire digest 3.5), both as
    they would stand in an ERROR message.
    """

    def __init__(self, message: str, *, code: int, scope: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.scope = scope


class LocalProtocolError(WireError):
    """We tried to send what the protocol forbids; nothing was sent and no state changed."""


class RemoteProtocolError(WireError):
    """The peer sent what the protocol forbids."""

    exit_code = 5


# --- profile: openai-compatible/1 ---------------------------------------------------------------


class ProfileError(NnrpSchedError):
    """A request that ends in `response.error` (seed 003, section 10).

    `status` is the RESULT_PUSH status code, `diagnostics` the optional extra facts about the
    backend's answer.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        error_type: str,
        status: int = 500,
        diagnostics: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.error_type = error_type
        self.status = status
        self.diagnostics = diagnostics


class ProfileStreamError(NnrpSchedError):
    """A peer sent an event that is not one of the profile's, or broke the order of a tool call."""

    exit_code = 5


# --- engine -------------------------------------------------------------------------------------


class BackendError(NnrpSchedError):
    """The serving engine refused or failed a chat call.

    `status` is the HTTP status the engine's own API would have answered with; the profile derives
    its error code from that number, never from the text.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        error_type: str | None = None,
        parameter: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.error_type = error_type
        self.parameter = parameter


# --- peers --------------------------------------------------------------------------------------


class EndpointError(NnrpSchedError, ValueError):
    """An endpoint text names no carrier we have, or lacks a part."""

    exit_code = 2


class SecurityError(NnrpSchedError, ValueError):
    """An endpoint cannot be used as it is protected.

    A certificate is missing or cannot be read, everybody on a network would be let in, or the
    carrier's library is not installed.
    """

    exit_code = 2


class PeerUnreachable(NnrpSchedError):
    """No connection could be made, or the peer did not answer the hello in time."""

    exit_code = 5


class ConnectionLost(NnrpSchedError):
    """The connection ended while something on it was still wanted."""

    exit_code = 5


class ReaderTooSlow(NnrpSchedError):
    """Events of one operation came faster than they were read; the operation was cancelled.

    Everything that had been buffered until then was delivered.
    """


class SessionRejected(NnrpSchedError):
    """The server refused or ended a session; `code` is its session error code."""

    exit_code = 5

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


# --- starting up --------------------------------------------------------------------------------


class StartError(NnrpSchedError):
    """The server could not start: an address in use, a model that is not there, no engine."""

    exit_code = 3


class VllmArgumentError(StartError):
    """A flag meant for vLLM that it does not take, or that would have no effect here."""

    exit_code = 2


class EngineLost(NnrpSchedError):
    """The engine died under a running server."""


class ServerEnded(NnrpSchedError):
    """A server that was started for the time of some work ended before it."""


class UnsupportedVllm(NnrpSchedError):
    """The installed vLLM, or one of its seams, is not one the patch layer was written for."""

    exit_code = 4
