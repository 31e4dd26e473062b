"""What users call the engine's requests, when several API servers share one engine.

Pure. An API server knows its own requests; the engine has all of them, and of each what its API
server told: the id that users see, program and agent. Of those that nobody told of, vLLM's external
id stands in the internal one.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from msgspec import Struct


class Told(Struct, frozen=True):
    """What an API server tells the engine of one of its requests."""

    id: str
    """As users of that server see it."""
    program: str | None = None
    agent: str | None = None


def external_id(internal_id: str) -> str:
    """vLLM's external id in an internal one.

    That is `<external>-<8 random>`, with `<index>_` before it for one of several choices.
    """
    stem = internal_id.rpartition("-")[0]
    index, separator, rest = stem.partition("_")
    return rest if separator and index.isdecimal() else stem


def meant(
    ids: Iterable[str],
    told: Mapping[str, Told],
    names: Collection[str],
    by: Literal["id", "program", "agent"],
) -> dict[str, str]:
    """Which of the internal `ids` are meant, each with the name that its receipt is to have.

    By id a request of that very id counts before those that only share the external one: an abort
    must not hit them too. By program or agent the name is the id that users see.
    """
    wanted = frozenset(names)
    known = {one: told[one] for one in ids if one in told}
    if by != "id":
        return {one: is_.id for one, is_ in known.items() if getattr(is_, by) in wanted}
    exact = {one: is_.id for one, is_ in known.items() if is_.id in wanted}
    left = wanted.difference(exact.values())
    shared = {one: external_id(one) for one in ids}
    return exact | {one: name for one, name in shared.items() if name in left}
