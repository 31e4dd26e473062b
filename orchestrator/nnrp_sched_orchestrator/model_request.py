"""A model call as an agent asks for it, and how its share of tokens gets into its body. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct

from nnrp_sched.profile import profile_error
from nnrp_sched.profile.json_values import is_object
from nnrp_sched.profile.workflow import MAX_COUNT, Workflow
from nnrp_sched_orchestrator.features import Features
from nnrp_sched_orchestrator.grants import Terms
from nnrp_sched_orchestrator.time_limit import TimeLimit

OnLoss = Literal["fail", "resubmit"]
"""What becomes of a call whose connection is lost."""

_LENGTHS: Final = ("max_completion_tokens", "max_tokens")
"""The members of a chat body that limit its output, the first that is set counts."""


class ModelRequest(Struct, frozen=True):
    """What is asked of a model, by whom, and how it is to be treated."""

    body: dict[str, Any]
    """An OpenAI chat request."""
    program: str
    agent: str
    """The agent's path."""
    workflow: Workflow = Workflow()
    """Who asks, for servers that read it; `deadline_ms` is set when the call goes out."""
    weight: float = 1.0
    """The program's share of the pool."""
    priority: int | None = None
    affinity: str | None = None
    on_loss: OnLoss = "fail"
    idempotency_key: str | None = None
    traceparent: str | None = None
    limit: TimeLimit | None = None
    """By when the result is wanted."""

    @property
    def choices(self) -> int:
        """How many answers it asks for."""
        count = self.body.get("n")
        return count if type(count) is int and count > 0 else 1

    @property
    def asked(self) -> int | None:
        """The most output tokens that it may make over all choices; None when it does not say."""
        for name in _LENGTHS:
            length = self.body.get(name)
            if type(length) is int and length > 0:
                return length * self.choices
        return None

    def told(self, left: float | None, tokens: int | None) -> Workflow:
        """Who asks, with the seconds and the tokens that are left."""
        return msgspec.structs.replace(
            self.workflow,
            deadline_ms=None if left is None else round(left * 1000),
            budget_tokens=None if tokens is None else min(tokens, MAX_COUNT),
        )

    def outgoing(self, terms: Terms, features: Features) -> dict[str, Any]:
        """The body that goes out: with usage, its share of tokens, and a model if it names none."""
        model = features.models[0] if features.models else None
        body = dict(self.body)
        if model is not None:
            body.setdefault("model", model)
        options = body.get("stream_options")
        known = options if is_object(options) else {}
        body["stream_options"] = {**known, "include_usage": True}
        if terms.cap is not None:
            most, each = features.max_model_len, max(1, terms.cap // self.choices)
            # An engine refuses a limit that its model could never come to, and needs none.
            if most is None or each < most:
                name = next((name for name in _LENGTHS if body.get(name)), _LENGTHS[0])
                body[name] = each
        return body


def chat_body(
    messages: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str,
    model: str | None,
    members: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of a chat: a whole one, or made of its messages, or of what a user says.

    `model` and `members` are added. Raises `TypeError` for anything else than these, and
    `ProfileError` for what cannot be sent, or counted against a budget.
    """
    if isinstance(messages, str):
        body: dict[str, Any] = {"messages": [{"role": "user", "content": messages}]}
    elif isinstance(messages, Mapping):
        body = dict(messages)
    else:
        body = {"messages": checked_messages(messages)}
    if model is not None:
        body["model"] = model
    whole = {**body, **members}
    _check(whole)
    return whole


def _check(body: dict[str, Any]) -> None:
    count = body.get("n")
    if count is not None and type(count) is not int:
        # An engine may read "4" as 4, and four answers cost four times as much.
        raise profile_error("invalid_body", f"n={count!r}: it must be a whole number")
    try:
        msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise profile_error(
            "invalid_body", f"the chat body cannot be written as JSON: {error}"
        ) from error


def checked_messages(value: object) -> list[dict[str, Any]]:
    """Copies of the messages of a chat. Raises `TypeError` for what is no list of messages."""
    if isinstance(value, Iterable):
        found = list(cast(Iterable[object], value))
        if all(isinstance(each, Mapping) for each in found):
            return [dict(cast(Mapping[str, Any], each)) for each in found]
    raise TypeError(
        f"messages must be a text, a list of messages, or a whole chat body, not {value!r}"
    )
