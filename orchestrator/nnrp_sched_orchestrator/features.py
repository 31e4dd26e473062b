"""What a server declares of itself, as far as an orchestrator makes use of it."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from nnrp_sched.profile import CONTROL_SCHEMA
from nnrp_sched.wire import CapabilityToken

WORKFLOW: Final = "nnrp.workflow"
PRIORITY: Final = "nnrp.priority"
IDEMPOTENCY: Final = "nnrp.idempotency_key"
DIAGNOSTICS: Final = "nnrp.diagnostics"


class Features(Struct, frozen=True):
    """What may be used of a server; of one that declares nothing, chats and CANCEL."""

    extensions: frozenset[str] = frozenset()
    """The names of its declared extensions, schemas of its own requests among them."""
    models: tuple[str, ...] = ()
    """The models it serves; empty when it does not say."""
    negotiated: frozenset[str] = frozenset()
    """The control capabilities that the session has agreed on (`wire.CapabilityToken`)."""
    max_model_len: int | None = None
    """Tokens of a prompt and its answer together; None when the server does not say."""

    @property
    def workflow(self) -> bool:
        """Whether it reads `nnrp.workflow`."""
        return WORKFLOW in self.extensions

    @property
    def priority(self) -> bool:
        """Whether its queue is ordered by `nnrp.priority`."""
        return PRIORITY in self.extensions

    @property
    def idempotency(self) -> bool:
        """Whether a second call with the same `nnrp.idempotency_key` attaches to the first."""
        return IDEMPOTENCY in self.extensions

    @property
    def token_budget(self) -> bool:
        """Whether a call's share of tokens can be raised while it runs."""
        return CapabilityToken.BUDGET_UPDATE in self.negotiated

    @property
    def diagnostics(self) -> bool:
        """Whether it sends a `response.diagnostics` event to who asks."""
        return DIAGNOSTICS in self.extensions

    @property
    def control(self) -> bool:
        """Whether it answers `operation.abort` and `queue.watch`."""
        return CONTROL_SCHEMA in self.extensions


class _Named(Struct):
    name: str


class _Model(Struct):
    id: str
    max_model_len: int | None = None


class _Document(Struct):
    """The members of a capability document that matter here; the others are ignored."""

    extensions: list[_Named] = []
    models: list[_Model] = []


def features_of(document: dict[str, Any]) -> Features:
    """What a capability document declares (seed 003, section 13).

    Raises `msgspec.ValidationError` for one of another form.
    """
    found = msgspec.convert(document, _Document)
    return Features(
        frozenset(each.name for each in found.extensions),
        tuple(each.id for each in found.models),
        max_model_len=min(
            (each.max_model_len for each in found.models if each.max_model_len), default=None
        ),
    )
