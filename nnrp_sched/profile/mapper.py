"""Turns the chat chunks of one streaming call into profile events (adapter facts 5.4)."""

from nnrp_sched.profile.events import Event, JsonObject


class ChatMapper:
    """Maps one stream; feed it every chunk, then either `finish` or `interrupt`."""

    def chunk(self, chunk: JsonObject) -> list[Event]:
        """The events of the next chunk, in order; often one, sometimes none.

        Raises `ProfileStreamError` when the engine breaks the order of a tool call.
        """
        raise NotImplementedError

    def finish(self) -> list[Event]:
        """The events that end the stream; the last one is always `Completed`."""
        raise NotImplementedError

    def interrupt(self, code: str, message: str) -> list[Event]:
        """A `response.tool_call.error` for every open call, when the stream ends otherwise."""
        raise NotImplementedError
