"""The capability manifest of a server, and the tokens that select recipes (seed 000, 10.1)."""

from collections.abc import Iterable
from typing import Final

from nnrp_sched.conformance.files import MANIFEST_SCHEMA, check
from nnrp_sched.profile.control import CONTROL_SCHEMA
from nnrp_sched.profile.json_values import JsonObject, is_object

ADAPTER: Final = "nnrp-sched"
SCRIPTED: Final = "harness.scripted"
"""Needs what only the scripted engine can be made to do."""
CONTROL: Final = "harness.control"
"""Needs a server with `nnrp-sched-control/1`."""

_FEATURES: Final = ("streaming", "non_streaming", "tool_calls", "cancellation")
_MANIFEST_MEMBERS: Final = (
    "profile",
    "schema_version",
    "compatibility_levels",
    "operations",
    "extensions",
)


def manifest_of(document: JsonObject, adapter: str = ADAPTER) -> JsonObject:
    """The manifest that a capability document amounts to (wire digest 4.7).

    The document lists models, which a manifest may not. Raises `RecipeError` when the result does
    not follow the suite's schema.
    """
    members: JsonObject = {n: document[n] for n in _MANIFEST_MEMBERS if n in document}
    manifest: JsonObject = {"adapter": adapter, **members}
    check(manifest, MANIFEST_SCHEMA, "the manifest made from the server's capability document")
    return manifest


def check_manifest(manifest: JsonObject) -> None:
    """Raise `RecipeError` for a manifest that does not follow the suite's schema."""
    check(manifest, MANIFEST_SCHEMA, "the capability manifest")


def tokens_of(manifest: JsonObject) -> frozenset[str]:
    """What a manifest declares, as the capabilities that recipes ask for (wire digest 5.1).

    A declared extension gives `api.extension.NAME`; a critical one also that with `.critical`.
    """
    tokens = {f"api.level{level}" for level in manifest["compatibility_levels"]}
    for operation in manifest["operations"]:
        tokens.add(f"api.{operation['name']}")
        tokens.update(f"api.{feature}" for feature in _FEATURES if operation.get(feature))
    for extension in manifest.get("extensions", ()):
        tokens.add(f"api.extension.{extension['name']}")
        if extension["critical"]:
            tokens.add(critical_token(extension["name"]))
        if extension["name"] == CONTROL_SCHEMA:
            tokens.add(CONTROL)
    return frozenset(tokens)


def critical_token(extension: str) -> str:
    """The capability that a recipe for a critical extension asks for."""
    return f"api.extension.{extension}.critical"


def model_ids(document: JsonObject) -> list[str]:
    """The ids of the models that a capability document lists."""
    models: Iterable[object] = document.get("models", ())
    return [str(model["id"]) for model in models if is_object(model) and "id" in model]
