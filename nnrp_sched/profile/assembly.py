"""Puts the chat.completion together that a stream of chat.completion.chunk objects amounts to."""

from nnrp_sched.profile.events import JsonObject


class ChatAssembly:
    """Collects the chunks of one stream."""

    def add(self, chunk: JsonObject) -> None:
        """Take the next chunk; it is neither changed nor kept."""
        raise NotImplementedError

    def body(self) -> JsonObject:
        """The chat.completion of what was added so far."""
        raise NotImplementedError
