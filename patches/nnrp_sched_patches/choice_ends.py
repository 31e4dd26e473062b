"""The ends of a stream's choices: vLLM leaves one out when it aborts a choice without a token.

Its chat serving takes an output without text and tokens for a piece of a chunked prefill, and
passes over it with the finish reason that is in it. The stream would end for no reason.
"""

from nnrp_sched.engine.port import ChatBody

_SHARED = ("id", "object", "created", "model")


class ChoiceEnds:
    """Which choices of one stream have ended."""

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._last: ChatBody = {}

    def note(self, chunk: ChatBody) -> None:
        """A chunk goes to the caller."""
        self._last = chunk
        for choice in chunk.get("choices") or ():
            if choice.get("finish_reason"):
                self._told.add(choice["index"])

    def missing(self, body: ChatBody) -> ChatBody | None:
        """A chunk that ends as aborted those choices of a call with `body` that have no end yet."""
        choices = body.get("n")
        wanted = range(choices if isinstance(choices, int) else 1)
        open_ones = [index for index in wanted if index not in self._told]
        if not open_ones:
            return None
        return {
            **{key: self._last[key] for key in _SHARED if key in self._last},
            "choices": [
                {"index": index, "delta": {}, "logprobs": None, "finish_reason": "abort"}
                for index in open_ones
            ],
        }
