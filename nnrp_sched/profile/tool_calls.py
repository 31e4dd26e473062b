"""The order of a tool call's events, as a table of states (seed 003, section 12; digest 4.3)."""

from msgspec import Struct

from nnrp_sched.profile.events import Event


class OpenCall(Struct, frozen=True):
    """A tool call that was started and has not ended."""

    index: int
    item_id: str
    call_id: str
    name: str
    arguments: str
    """What its deltas say so far."""


class ToolCallGrammar:
    """Watches the events of one operation; knows which tool calls are open."""

    def observe(self, event: Event) -> None:
        """Take the next event of the operation; events of other kinds are no concern of it.

        Raises `ProfileStreamError` for a breach of the order; the event is then not counted.
        """
        raise NotImplementedError

    def open_calls(self) -> tuple[OpenCall, ...]:
        """The calls that still need their completed or error, in the order they started."""
        raise NotImplementedError
