"""The body of a streamed reply: server-sent events, as they come."""

from typing import Final

import anyio
import msgspec

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile import Event
from nnrp_sched.profile.json_values import JsonObject
from nnrp_sched_orchestrator.embed.chunks import ChunkWriter
from nnrp_sched_orchestrator.embed.pending import PendingCall
from nnrp_sched_orchestrator.embed.records import Unanswered
from nnrp_sched_orchestrator.embed.refusals import refusal_of

_DONE: Final = b"data: [DONE]\n\n"


class EventBytes:
    """Pieces of the body, each a whole number of server-sent events.

    Clients stop reading at `[DONE]` and close the body then, as they do when they have had enough
    (orchestration anchors, 2c.1). The call has ended before `[DONE]` is told, so that only the
    latter cancels it. A body that is forgotten cancels its call as well.
    """

    def __init__(
        self,
        call: PendingCall,
        writer: ChunkWriter,
        first: Event | None,
        read_seconds: float | None,
    ) -> None:
        """`first` is the call's first event, `read_seconds` how long one may take to come."""
        self._call = call
        self._stream = call.stream
        self._writer = writer
        self._first = first
        self._read_seconds = read_seconds
        self._over = False

    async def read(self) -> bytes | None:
        """The next piece; None at the end.

        Raises `Unanswered` when the client's time is over; the call has been stopped by then.
        """
        while not self._over:
            try:
                event = await self._next()
            except Unanswered:
                raise
            except NnrpSchedError as error:
                self._over = True
                return _data(refusal_of(error).document()) + _DONE
            if event is None:
                return await self._end()
            chunk = self._writer.event(event)
            if chunk is not None:
                return _data(chunk)
        return None

    async def aclose(self) -> None:
        """The client wants no more; waits until a call that has not ended is stopped."""
        over, self._over = self._over, True
        if not over:
            await self._call.stop("its client wants no more of it")

    async def _next(self) -> Event | None:
        first, self._first = self._first, None
        if first is not None:
            return first
        event: Event | None = None
        with anyio.move_on_after(self._read_seconds) as waiting:
            event = await anext(self._stream, None)
        if waiting.cancelled_caught:
            await self.aclose()
            raise Unanswered(
                "ReadTimeout",
                f"nothing came of {self._stream.id} in {self._read_seconds:g} s",
                stream=self._stream,
            )
        return event

    async def _end(self) -> bytes | None:
        """The last piece of a call that has ended well; None when it was closed meanwhile."""
        result = await self._stream.result()
        self._over = True
        if result.status != "completed":
            return None
        return b"".join(map(_data, self._writer.finish(result.body))) + _DONE


def _data(document: JsonObject) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"
