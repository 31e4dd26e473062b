"""A request and its reply, as an HTTP client has them, without any HTTP library."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from nnrp_sched.errors import NnrpSchedError

if TYPE_CHECKING:
    from nnrp_sched_orchestrator.embed.event_bytes import EventBytes
    from nnrp_sched_orchestrator.embed.pending import ModelStream


class EmbedSettings(Struct, frozen=True):
    """How requests of a framework become calls."""

    retry_seconds: float = 5.0
    """How long a call whose client has timed out goes on for a retry that attaches to it; the
    clients of `openai` try again after 0.5 to 2 s. With 0 it is stopped at once."""
    unclaimed_limit: int = 256
    """How many such calls there may be; of more, the oldest is stopped."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a bound that is none."""
        if self.retry_seconds < 0 or self.unclaimed_limit < 1:
            raise ValueError(
                f"{self!r}: retry_seconds from 0 and unclaimed_limit from 1 are needed"
            )


class HttpRequest(Struct, frozen=True):
    """What a client sends."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes = b""
    read_seconds: float | None = None
    """How long the client waits for the next bytes; None: as long as it takes."""


class HttpReply(Struct, frozen=True):
    """What it gets."""

    status: int
    headers: dict[str, str]
    content: "bytes | EventBytes"
    stream: "ModelStream | None" = None
    """The `Stream` behind it, if any: who has the reply has the proof of its end."""


class Unanswered(NnrpSchedError):
    """There is no reply: the HTTP library's own error of this kind is to be raised."""

    def __init__(
        self,
        kind: Literal["ConnectError", "ReadTimeout"],
        message: str,
        *,
        stream: "ModelStream | None" = None,
    ) -> None:
        """`kind` is the name of that error in httpx and httpx2, `stream` the call that has none."""
        super().__init__(message)
        self.kind = kind
        self.stream = stream
