"""What became of a fan-out: who won, who was cancelled, and what that has saved. Pure."""

from typing import Any, Generic, TypeVar

from msgspec import Struct

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_orchestrator.records import Receipt
from nnrp_sched_orchestrator.work import Outcome

FanOutT = TypeVar("FanOutT")


class Failed(Struct, frozen=True):
    """A stream that failed by itself."""

    stream_id: str
    error: Exception


class FanOutReport(Struct, frozen=True):
    """What a fan-out cost, and what it saved."""

    started: int
    """Streams that were started."""
    winners: tuple[str, ...]
    """The ids of the streams whose results are the result."""
    losers: tuple[Receipt, ...]
    """Proof of the ends of those that were cancelled, because nobody needed them any more."""
    failed: tuple[Failed, ...]
    tokens_spent: int
    """Output tokens of all of them, as far as known."""
    tokens_saved_at_most: int
    """What the losers were still allowed to make. An upper bound: they might have ended sooner."""
    without_limit: int
    """Losers of which nobody knows what they were allowed; they are not in the bound."""
    seconds_per_token: float | None
    """How long a call took for a token, from the first event to the end, over all that had some;
    None when too few tokens came to tell."""
    seconds: float
    """How long it all took."""

    @property
    def engine_seconds_saved_at_most(self) -> float | None:
        """The bound on tokens in the engine's time, at the measured speed of one call."""
        if self.seconds_per_token is None:
            return None
        return self.tokens_saved_at_most * self.seconds_per_token


class FanOut(Struct, Generic[FanOutT], frozen=True):
    """What came of a fan-out."""

    result: FanOutT
    report: FanOutReport


class NoWinner(NnrpSchedError):
    """None of the streams came to a result that counts; `report` says what became of each."""

    def __init__(self, what: str, report: FanOutReport, cancelled: Receipt | None = None) -> None:
        """`cancelled` is the receipt of a stream that somebody else cancelled, and so ended it."""
        failures = "; ".join(f"{each.stream_id}: {each.error}" for each in report.failed[:3])
        more = len(report.failed) - 3
        told = f" ({failures}{f'; and {more} more' if more > 0 else ''})" if failures else ""
        if cancelled is not None:
            told = f" ({cancelled.stream_id} was cancelled: {cancelled.reason})"
        super().__init__(
            f"{what}: of {report.started} streams none came to a result that counts{told}"
        )
        self.report = report


class Tally:
    """Counts the streams of one fan-out as they end."""

    def __init__(self) -> None:
        self.started = 0
        self._losers: list[Receipt] = []
        self._failed: list[Failed] = []
        self._tokens = 0
        self._saved = 0
        self._without_limit = 0
        self._milliseconds = 0.0
        self._timed_tokens = 0

    def ended(self, result: Outcome, receipt: Receipt | None) -> int:
        """A stream has ended; its output tokens."""
        tokens = tokens_of(result, receipt)
        self._tokens += tokens
        times = result.timings
        if times.first_event is not None and times.finished is not None and tokens > 1:
            self._milliseconds += times.finished - times.first_event
            self._timed_tokens += tokens - 1  # The first one came with the first event.
        return tokens

    def failed(self, stream_id: str, error: Exception) -> None:
        """It has failed by itself."""
        self._failed.append(Failed(stream_id, error))

    def lost(self, receipt: Receipt, tokens: int, max_tokens: int | None) -> None:
        """It was cancelled after so many tokens of those it was allowed."""
        self._losers.append(receipt)
        if max_tokens is None:
            self._without_limit += 1
        else:
            self._saved += max(0, max_tokens - tokens)

    def report(self, winners: tuple[str, ...], seconds: float) -> FanOutReport:
        """All of it, once every stream has ended."""
        timed = self._timed_tokens
        return FanOutReport(
            started=self.started,
            winners=winners,
            losers=tuple(self._losers),
            failed=tuple(self._failed),
            tokens_spent=self._tokens,
            tokens_saved_at_most=self._saved,
            without_limit=self._without_limit,
            seconds_per_token=self._milliseconds / timed / 1000 if timed else None,
            seconds=seconds,
        )


def tokens_of(result: Outcome, receipt: Receipt | None) -> int:
    """The output tokens of a stream that has ended, as far as anybody has told; else 0."""
    counts: dict[str, Any] = result.usage or {}
    known = [counts.get("completion_tokens"), None if receipt is None else receipt.tokens]
    return next((count for count in known if type(count) is int), 0)
