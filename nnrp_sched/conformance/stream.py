"""The rules that every stream of events has to keep, whatever the recipe (wire digest 4.2, 4.3).

Written from the profile's text, apart from the code that serves it: the two must not share a fault.
"""

import json
from typing import Final

from msgspec import Struct, field

from nnrp_sched.conformance.files import event_faults
from nnrp_sched.conformance.recipe import Outcome
from nnrp_sched.conformance.tool_calls import ToolCalls
from nnrp_sched.profile.json_values import JsonObject, is_array, is_object

TERMINALS: Final[dict[str, Outcome]] = {
    "response.completed": "success",
    "response.error": "error",
    "response.cancelled": "cancelled",
}
"""The events that end an operation, and what they end it as."""

_CALL: Final = "response.tool_call."
_TEXT: Final = "response.output_text.delta"
_CLOSED_FAMILIES: Final = (_CALL, "response.output_text.")
_KNOWN: Final = frozenset(
    {_TEXT, "response.usage", "response.diagnostics", *TERMINALS}
    | {f"{_CALL}{kind}" for kind in ("started", "delta", "completed", "error")}
)


class Stream(Struct):
    """The events of one operation so far, and every breach of a rule among them."""

    events: list[JsonObject] = field(default_factory=list[JsonObject])
    faults: list[str] = field(default_factory=list[str])
    text: dict[int, str] = field(default_factory=dict[int, str])
    sequence: int = 0
    calls: ToolCalls = field(default_factory=ToolCalls)

    def partial(self, body: bytes, sequence: int) -> None:
        """The body and the result_sequence of the next PARTIAL_RESULT."""
        if sequence != self.sequence + 1:
            self.faults.append(f"result_sequence {sequence} after {self.sequence}")
        self.sequence = sequence
        event = self._decoded(body, "a PARTIAL_RESULT")
        if event is None:
            return
        if event["type"] in TERMINALS:
            self.faults.append(f"{event['type']} in a PARTIAL_RESULT")
        self._observe(event)

    def document(self, document: bytes) -> Outcome | None:
        """The document of the RESULT_PUSH; what it ends the operation as, None for no terminal."""
        event = self._decoded(document, "the RESULT_PUSH")
        if event is None:
            return None
        outcome = TERMINALS.get(event["type"])
        if outcome is None:
            self.faults.append(f"{event['type']} in the RESULT_PUSH, which it cannot end")
        # After a cancel no event follows, so the calls that it cut short stay open (digest 4.3).
        if self.calls.open and outcome != "cancelled":
            self.faults.append(f"the operation ended before its tool calls {self.calls.open}")
        self._observe(event)
        if outcome == "success" and self.text:
            self._compare_text(event)
        return outcome

    def _decoded(self, document: bytes, where: str) -> JsonObject | None:
        try:
            event = json.loads(document.decode("utf-8", errors="strict"))
        except ValueError as fault:
            self.faults.append(f"{where} is not one UTF-8 JSON document: {fault}")
            return None
        if not is_object(event) or not isinstance(event.get("type"), str):
            self.faults.append(f"{where} is no object with a `type`: {event!r}"[:200])
            return None
        return event

    def _observe(self, event: JsonObject) -> None:
        self.events.append(event)
        kind = event["type"]
        if kind not in _KNOWN:
            if kind.startswith(_CLOSED_FAMILIES):
                self.faults.append(f"unknown event type {kind!r}")
            return
        malformed = event_faults(event)
        if malformed:
            self.faults += [f"{kind}: {fault}" for fault in malformed]
        elif kind == _TEXT:
            self.text[event["index"]] = self.text.get(event["index"], "") + event["delta"]
        elif kind == "response.usage":
            self._add_up(event["usage"])
        elif kind.startswith(_CALL):
            fault = self.calls.take(kind.removeprefix(_CALL), event)
            if fault is not None:
                self.faults.append(f"{kind} of call {event['call_id']!r}: {fault}")

    def _add_up(self, usage: JsonObject) -> None:
        for spelling in (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")):
            counts = [usage[name] for name in spelling if name in usage]
            if len(counts) == 2 and sum(counts) != usage["total_tokens"]:
                self.faults.append(f"{' + '.join(spelling)} is not total_tokens: {usage}")

    def _compare_text(self, completed: JsonObject) -> None:
        choices = completed["body"].get("choices")
        for choice in choices if is_array(choices) else ():
            message = choice.get("message", {})
            streamed = self.text.get(choice.get("index"))
            if streamed is not None and (message.get("content") or "") != streamed:
                self.faults.append(
                    f"the deltas of choice {choice['index']} add up to {streamed!r}, the final "
                    f"body has {message.get('content')!r}"
                )
