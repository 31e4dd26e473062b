"""The capability document: what a server declares about itself (seed 003, section 13)."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from nnrp_sched.profile.envelope import CHAT_COMPLETIONS, PROFILE, SCHEMA_VERSION


class Operation(Struct, frozen=True):
    """One operation and what it can do."""

    name: str
    streaming: bool
    non_streaming: bool
    tool_calls: bool
    cancellation: bool


class Model(Struct, frozen=True):
    """One model, by the id that clients write into the body."""

    id: str
    owned_by: str = "adapter"
    max_model_len: int | UnsetType = UNSET
    """Tokens of a prompt and its answer together, where that is known; named as vLLM names it. A
    limit of the answer that is above it is refused."""


class Extension(Struct, frozen=True):
    """Something beyond the profile; a client may ignore it unless it is critical."""

    name: str
    critical: bool
    description: str


class CapabilityDocument(Struct, frozen=True):
    """The source of truth for feature probes and conformance selection."""

    profile: str
    schema_version: str
    compatibility_levels: tuple[int, ...]
    operations: tuple[Operation, ...]
    models: tuple[Model, ...]
    extensions: tuple[Extension, ...]

    def to_builtins(self) -> dict[str, Any]:
        """The document as plain dicts and lists, ready for JSON."""
        document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return document


def capability_document(
    models: Iterable[str],
    tool_calls: bool,
    extensions: Iterable[Extension] = (),
    *,
    max_model_len: int | None = None,
) -> CapabilityDocument:
    """The document of a Level 1 server; without models it serves no chats, and no level.

    `tool_calls` is whether the engine can produce them. Only what works is declared: `extensions`
    is the caller's to know.
    """
    length = UNSET if max_model_len is None else max_model_len
    served = tuple(Model(id=model, max_model_len=length) for model in models)
    chat = Operation(
        name=CHAT_COMPLETIONS,
        streaming=True,
        non_streaming=True,
        tool_calls=tool_calls,
        cancellation=True,
    )
    return CapabilityDocument(
        profile=PROFILE,
        schema_version=SCHEMA_VERSION,
        compatibility_levels=(1,) if served else (),
        operations=(chat,) if served else (),
        models=served,
        extensions=tuple(extensions),
    )
