"""The recipe and schema files, and JSON documents checked against the schemas."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from nnrp_sched.errors import NnrpSchedError, StartError
from nnrp_sched.profile.json_values import JsonObject, is_object

PLAN_SCHEMA: Final = "suite/schemas/api-profile-execution-plan.schema.json"
RESULTS_SCHEMA: Final = "suite/schemas/api-profile-case-results.schema.json"
REPORT_SCHEMA: Final = "suite/schemas/report.schema.json"
MANIFEST_SCHEMA: Final = "suite/schemas/api-profile-capabilities.schema.json"
RECIPE_SCHEMA: Final = "recipe.schema.json"
EVENT_SCHEMA: Final = "event.schema.json"

_RECIPE_FOLDERS: Final = ("suite/recipes", "required", "negative", "extensions")


class RecipeError(NnrpSchedError):
    """A recipe, plan or manifest is not what its schema says; the message names place and fault."""

    exit_code = 2


def root() -> Path:
    """The `recipes` folder: inside the package where a wheel put it, else beside the packages."""
    packaged = Path(__file__).parent / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "recipes"


def default_folders() -> list[Path]:
    """The folders of the suite's recipes and of this project's."""
    return [root() / folder for folder in _RECIPE_FOLDERS]


def load_json(path: Path) -> JsonObject:
    """The JSON object in a file; raises `RecipeError`."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as fault:
        raise RecipeError(f"{path} cannot be read: {fault}") from fault
    if not is_object(value):
        raise RecipeError(f"{path} holds no JSON object")
    return value


def check(document: Any, schema: str, what: str) -> None:
    """Raise `RecipeError` with every fault that `document` has by the schema file of that name."""
    faults = faults_of(document, _schema(schema))
    if faults:
        raise RecipeError(f"{what} does not follow {schema}: " + "; ".join(faults))


def event_faults(event: JsonObject) -> list[str]:
    """What is wrong with the form of one event of the profile."""
    return faults_of(event, _schema(EVENT_SCHEMA))


def faults_of(document: Any, schema: JsonObject) -> list[str]:
    """Every fault of a document by a JSON Schema, each with the place of it."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError as error:
        raise StartError(
            "conformance checks need jsonschema: pip install 'nnrp-sched[conformance]'"
        ) from error
    validator: Any = Draft202012Validator(schema)
    errors = validator.iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in errors]


@cache
def _schema(name: str) -> JsonObject:
    return load_json(root() / name)
