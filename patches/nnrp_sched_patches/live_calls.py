"""The chats in flight through one VllmEngine, and where vLLM's frontend has them.

Only the frontend's own tables are read here, so what they say is never the scheduler's word.
"""

import secrets
from typing import Any

import anyio
from msgspec import Struct

from nnrp_sched.engine.port import AbortState

EXTERNAL_PREFIX = "chatcmpl-"
"""What vLLM's chat serving puts before the request id of a body."""


class LiveCall:
    """One chat from the moment it is called until its caller has its end."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        # Two calls may come with one id, and an HTTP client may choose the same one: vLLM's abort
        # by external id would hit them all.
        self.engine_id = f"{request_id}-{secrets.token_hex(4)}"
        self.admission = anyio.CancelScope()
        """Covers the part of the call that no abort in the engine can reach."""
        self.aborted = False
        self.answering = False
        """Whether the first chunk came: the engine had the request."""

    @property
    def external_id(self) -> str:
        """The id that vLLM's frontend knows the call by."""
        return f"{EXTERNAL_PREFIX}{self.engine_id}"


class LiveCalls:
    """Calls by the request id that their caller gave them."""

    def __init__(self) -> None:
        self._calls: dict[str, list[LiveCall]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._calls.values()))

    def open(self, request_id: str) -> LiveCall:
        """Note a call that begins."""
        call = LiveCall(request_id)
        self._calls.setdefault(request_id, []).append(call)
        return call

    def close(self, call: LiveCall) -> None:
        """Forget a call that ended."""
        calls = self._calls[call.request_id]
        calls.remove(call)
        if not calls:
            del self._calls[call.request_id]

    def of(self, request_id: str) -> list[LiveCall]:
        """The calls in flight with that id."""
        return list(self._calls.get(request_id, ()))


class Registration(Struct, frozen=True):
    """What vLLM's frontend knows of one external id."""

    handles: tuple[str, ...]
    """Internal ids for `AsyncLLM.abort(..., internal=True)`; a parent's for several choices.

    By its children's or its external id, vLLM would leave the parent of several choices in its
    tables for ever (hooks-verified.md, C9).
    """
    tokens: int | None
    """Output tokens so far, over all choices."""

    @property
    def state(self) -> AbortState:
        """`running` when tokens came; without the scheduler's word nothing else is certain."""
        return "running" if self.tokens else "unknown"


def registration(engine: Any, external_id: str) -> Registration | None:
    """Where the frontend of `engine`, an AsyncLLM, has a request; None when it has it not."""
    processor = engine.output_processor
    # `get`: the table is a defaultdict, and looking must not add to it.
    states = [
        processor.request_states[internal_id]
        for internal_id in processor.external_req_ids.get(external_id) or ()
        if internal_id in processor.request_states
    ]
    if not states:
        return None
    owners = [state if state.parent_req is None else state.parent_req for state in states]
    counts = [_tokens(state) for state in states]
    return Registration(
        handles=tuple(dict.fromkeys(owner.request_id for owner in owners)),
        tokens=None if None in counts else sum(count or 0 for count in counts),
    )


def _tokens(state: Any) -> int | None:
    if state.detokenizer is None:
        return None
    count: int = state.detokenizer.num_output_tokens()
    return count
