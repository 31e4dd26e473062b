"""The order of a tool call's events: started, delta*, then completed or error (seed 003, 12)."""

from typing import Any, Literal

from msgspec import Struct, field

from nnrp_sched.profile.json_values import JsonObject


class _ToolCall(Struct):
    place: tuple[Any, ...]
    """Index and item id, which must not change."""
    name: str | None
    arguments: str = ""
    state: Literal["open", "ended"] = "open"


class ToolCalls(Struct):
    """Every tool call of one operation, by its `call_id`."""

    calls: dict[str, _ToolCall] = field(default_factory=dict[str, _ToolCall])

    @property
    def open(self) -> list[str]:
        """The calls that were started and have not ended."""
        return [call_id for call_id, call in self.calls.items() if call.state == "open"]

    def take(self, kind: str, event: JsonObject) -> str | None:
        """What is wrong with the next event of a call, well-formed by itself; None: nothing.

        `kind` is the last part of its type.
        """
        call_id, place = event["call_id"], (event["index"], event["item_id"])
        call = self.calls.get(call_id)
        if call is None and kind == "started":
            self.calls[call_id] = _ToolCall(place, event["name"])
        elif call is None and kind == "error":
            # A call whose name never came has no start to report (adapter facts 5.3).
            self.calls[call_id] = _ToolCall(place, None, state="ended")
        elif call is None:
            return "the call was not started"
        elif kind == "started":
            return "the call was started already"
        elif call.state == "ended":
            return "the call has ended already"
        elif place != call.place:
            return f"index and item_id were {call.place}"
        elif kind == "delta":
            call.arguments += event["arguments_delta"]
        else:
            call.state = "ended"
            if kind == "completed":
                return _completion_fault(call, event)
        return None


def _completion_fault(call: _ToolCall, event: JsonObject) -> str | None:
    if event["name"] != call.name:
        return f"the call was started as {call.name!r}"
    if event["arguments"] != call.arguments:
        return f"its deltas add up to {call.arguments!r}"
    return None
