"""Answers to control requests, as records or as errors."""

from typing import Any, TypeVar

import msgspec

from nnrp_sched.client.chat import Chat
from nnrp_sched.client.outcome import Outcome
from nnrp_sched.errors import ConnectionLost, NnrpSchedError, ProfileError, ProfileStreamError

Answer = TypeVar("Answer")


async def answer_of(request: Chat, kind: type[Answer], *, member: str | None = None) -> Answer:
    """The body that answers a request, or one member of it.

    Raises `ProfileError` when the server refuses, `ConnectionLost` when it ends the request
    otherwise, and `ProfileStreamError` for an answer of another form.
    """
    outcome = await request.result()
    if outcome.body is None:
        raise refusal("the control request", outcome)
    try:
        return msgspec.convert(outcome.body if member is None else outcome.body.get(member), kind)
    except msgspec.ValidationError as error:
        raise ProfileStreamError(f"an answer of an unknown form: {error}") from error


def refusal(what: str, outcome: Outcome) -> NnrpSchedError:
    """The error that an outcome without an answer stands for."""
    if outcome.error is not None:
        error = outcome.error
        return ProfileError(error.code, error.message, error_type=error.type)
    return ConnectionLost(f"the server ended {what} as {outcome.status}: {outcome.reason}")


def told(record: msgspec.Struct | None) -> dict[str, Any] | None:
    """A record as the JSON object that carries it; what is None in it is left out."""
    if record is None:
        return None
    members = msgspec.to_builtins(record)
    return {name: members[name] for name in members if members[name] is not None}
