"""Recipes: readable cases with parameters (seed 000, 10.2; seed 001, section 14)."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from nnrp_sched.conformance.files import RECIPE_SCHEMA, RecipeError, check, load_json
from nnrp_sched.profile.json_values import JsonObject, is_array, is_object

Status = Literal["mandatory", "optional", "experimental", "deprecated"]
Outcome = Literal["success", "error", "cancelled"]

T = TypeVar("T")

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""An id that can name a file in a folder, and nothing outside of it."""

EXAMPLE_MODEL = "example-model"
"""The value that stands for "some model of the server"; its first model takes the place."""


class Framing(Struct, frozen=True, forbid_unknown_fields=True):
    """What the typed body of the submit says about itself; by default what the profile asks."""

    payload_kind: int = 0x10
    frames: int = 1
    """Typed frames in the body, each with the whole document."""
    profile_id: int = 0
    descriptor_flags: int = 0
    schema_id: int = 0
    schema_version: int = 0
    stream_semantics: int = 1
    trailing: str = ""
    """Text behind the frame that no descriptor counts."""
    bare: bool = False
    """The document without prelude and descriptor, under metadata that promises them."""


class Harness(Struct, frozen=True, forbid_unknown_fields=True):
    """What the runner does besides sending the envelope."""

    envelope: JsonObject = {}
    """Members that replace those of the envelope."""
    document: str | None = None
    """Text to submit in place of the envelope."""
    document_hex: str | None = None
    """Bytes to submit in place of the envelope, in hex."""
    framing: Framing = Framing()
    packet_hex: str | None = None
    """Bytes to send in place of the submit."""
    negotiate: list[str] = []
    """Capability tokens that CAPABILITY_NEGOTIATION offers before the submit."""
    cancel: Literal["cancel", "frame_cancel", "abort"] = "cancel"
    """The message that `nnrp.cancel_after_events` sends."""


class Request(Struct, frozen=True):
    """What is submitted. `nnrp.cancel_after_events` is for the runner and is not sent."""

    body: JsonObject
    nnrp: JsonObject = {}
    harness: Harness = Harness()


class ExpectedEvent(Struct, frozen=True):
    """An event that must be seen after those before it in the list."""

    type: str
    optional: bool = False
    min_count: int | None = None
    fields: JsonObject = {}

    @property
    def least(self) -> int:
        """How often it must come at least."""
        return self.min_count if self.min_count is not None else int(not self.optional)


class Expect(Struct, frozen=True):
    """What must be seen."""

    events: list[ExpectedEvent]
    terminal: Outcome
    absent: list[str] = []
    """Event types that must not be seen."""
    drop_reason: str | None = None
    """The reason of the RESULT_DROP_REASON that ends the operation without a document."""
    protocol_error: str | None = None
    """The code of the ERROR that answers, after which the server ends the connection."""
    notice: list[str] = []
    """Messages of which at least one must come before the terminal."""
    diagnostics: JsonObject = {}
    """What `response.diagnostics` must hold, should it come."""


class Case(Struct, frozen=True):
    """One case of a plan: a recipe with its parameters filled in."""

    id: str
    operation: str
    request: Request
    expect: Expect
    status: Status = "mandatory"
    required_capabilities: list[str] = []


class Recipe(Struct, frozen=True):
    """A case with parameters, as its file has it."""

    id: str
    operation: str
    request: JsonObject
    expect: JsonObject
    required_capabilities: list[str] = []
    status: Status = "mandatory"
    parameters: dict[str, str] = {}

    def filled_in(self, model: str, parameters: Mapping[str, str]) -> JsonObject:
        """The plan's case: `${NAME}` replaced wherever it is a whole string.

        A parameter takes its value of `parameters`, else of the recipe; one whose value is
        `example-model` becomes `model`. Raises `RecipeError` for a name that has no value.
        """
        values = {
            name: parameters.get(name, model if value == EXAMPLE_MODEL else value)
            for name, value in self.parameters.items()
        }
        return {
            "id": self.id,
            "operation": self.operation,
            "status": self.status,
            "required_capabilities": list(self.required_capabilities),
            "request": _replaced(self.request, values, self.id),
            "expect": _replaced(self.expect, values, self.id),
        }


def load_recipes(folders: Iterable[Path]) -> list[Recipe]:
    """Every recipe of the folders, in the order of their file names.

    Raises `RecipeError` for a file that does not follow `recipe.schema.json`, for an id that comes
    twice and for a folder without recipes.
    """
    recipes: dict[str, Recipe] = {}
    for folder in folders:
        paths = sorted(folder.glob("*.json"))
        if not paths:
            raise RecipeError(f"there are no recipes (*.json) in {folder}")
        for path in paths:
            document = load_json(path)
            check(document, RECIPE_SCHEMA, str(path))
            recipe = _convert(document, Recipe, str(path))
            if recipe.id in recipes:
                raise RecipeError(f"{path}: the id {recipe.id} belongs to another recipe")
            recipes[recipe.id] = recipe
    return list(recipes.values())


def case_of(document: JsonObject) -> Case:
    """A case of a plan, read; raises `RecipeError`, also for an id that can name no file."""
    case = _convert(document, Case, f"the case {document.get('id')!r}")
    if not _ID.fullmatch(case.id):
        raise RecipeError(
            f"the case {case.id!r}: its evidence gets the name of its id, which has to be letters, "
            "digits, and `.`, `_` or `-` between them"
        )
    return case


def _convert(document: JsonObject, kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as fault:
        raise RecipeError(f"{what}: {fault}") from fault


def _replaced(value: Any, values: Mapping[str, str], recipe: str) -> Any:
    if isinstance(value, str) and value.startswith("${") and value.endswith("}"):
        name = value[2:-1]
        if name not in values:
            raise RecipeError(f"{recipe}: the parameter {name} has no value")
        return values[name]
    if is_object(value):
        return {key: _replaced(value[key], values, recipe) for key in value}
    if is_array(value):
        return [_replaced(member, values, recipe) for member in value]
    return value
