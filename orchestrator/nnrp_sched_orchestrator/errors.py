"""What can go wrong with agents and their streams, each error with what a caller needs to act."""

from collections.abc import Mapping
from typing import Literal

from nnrp_sched.errors import ConnectionLost, NnrpSchedError
from nnrp_sched_orchestrator.records import ModelResult, Receipt, Spent

Limit = Literal["tokens", "model_calls", "depth", "fan_out", "seconds"]


class BudgetExceeded(NnrpSchedError):
    """A budget does not allow what was asked, or ended what ran."""

    def __init__(
        self,
        limit: Limit,
        owner: str,
        allowed: float,
        spent: Mapping[str, Spent],
        *,
        partial: ModelResult | None = None,
    ) -> None:
        """`owner` is the path of the agent whose limit it is, `spent` what each agent below it has.

        `partial` is what the call had produced when its budget cut it.
        """
        total = spent.get(owner, Spent())
        super().__init__(
            f"the {limit} budget of {owner!r} ({allowed:g}) allows no more; spent there: "
            f"{total.tokens} tokens, {total.model_calls} model calls, {total.seconds:.1f} s"
        )
        self.limit: Limit = limit
        self.owner = owner
        self.allowed = allowed
        self.spent = dict(spent)
        self.partial = partial


class DeadlineExceeded(NnrpSchedError):
    """The deadline of an agent, or of one above it, is over."""

    def __init__(self, owner: str, seconds: float) -> None:
        super().__init__(f"the deadline of {owner!r} is over: it had {seconds:g} s")
        self.owner = owner
        self.seconds = seconds


class QueueFull(NnrpSchedError):
    """Too many calls wait already; `limit` is how many may."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} calls wait already, more may not; wait for some to end, or raise queue_limit"
        )
        self.limit = limit


class EndpointsUnavailable(NnrpSchedError):
    """No endpoint could be reached for a while; `reasons` says why, by endpoint."""

    exit_code = 5

    def __init__(self, seconds: float, reasons: Mapping[str, str]) -> None:
        told = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in reasons.items())
        super().__init__(f"no endpoint could be reached for {seconds:g} s ({told or 'none given'})")
        self.seconds = seconds
        self.reasons = dict(reasons)


class TooManyStreams(NnrpSchedError):
    """An agent has as many streams or children at once as it may."""

    def __init__(self, what: str, owner: str, limit: int) -> None:
        super().__init__(f"agent {owner!r} has {limit} {what} already; wait for some to end")
        self.owner = owner
        self.limit = limit


class AgentEnded(NnrpSchedError):
    """An agent that was cancelled, or whose block was left, starts nothing any more."""

    def __init__(self, agent: str, reason: str) -> None:
        super().__init__(f"agent {agent!r} starts nothing any more: {reason}")
        self.agent = agent
        self.reason = reason


class StreamCancelled(NnrpSchedError):
    """The stream was cancelled by somebody else than who reads it."""

    def __init__(self, receipt: Receipt) -> None:
        reason = receipt.reason or "no reason given"
        super().__init__(f"stream {receipt.stream_id} was cancelled: {reason}")
        self.receipt = receipt


class StreamAbandoned(NnrpSchedError):
    """Nobody read a full stream for too long, so its work was stopped."""

    def __init__(self, receipt: Receipt, seconds: float) -> None:
        super().__init__(
            f"nobody read stream {receipt.stream_id} for {seconds:g} s while its buffer was full; "
            "read it, await its result, or close it when it is not wanted"
        )
        self.receipt = receipt
        self.seconds = seconds


class OperationLost(ConnectionLost):
    """The connection was lost under a call; `partial` is what it had produced."""

    def __init__(self, message: str, partial: ModelResult) -> None:
        super().__init__(message)
        self.partial = partial


class ToolFailed(NnrpSchedError):
    """A tool raised, ended with an error, or could not be called with these arguments."""


class ToolDefinitionError(NnrpSchedError, TypeError):
    """A function cannot be a tool: its name, its parameters or their types do not allow it."""

    exit_code = 2


class TurnsExceeded(NnrpSchedError):
    """A run asked its model as often as it may, and the last answer still calls tools."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the model was asked {limit} times and still calls tools; the transcript so far is in "
            "the stream's `partial.messages`, and can be gone on with"
        )
        self.limit = limit
