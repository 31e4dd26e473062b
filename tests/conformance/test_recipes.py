"""The recipe files: what they cover, and what is refused."""

import json
from pathlib import Path

import pytest

from nnrp_sched.conformance import RecipeError, default_folders, load_recipes
from nnrp_sched.conformance.files import RECIPE_SCHEMA, check, load_json, root

RECIPES = load_recipes(default_folders())
OURS = [
    (path, load_json(path))
    for folder in ("required", "negative", "extensions")
    for path in sorted((root() / folder).glob("*.json"))
]


def sources(folder: str) -> str:
    return "\n".join(str(recipe["source"]) for path, recipe in OURS if path.parent.name == folder)


@pytest.mark.parametrize("number", range(1, 11))
def test_each_case_that_level_1_requires_has_a_recipe(number: int) -> None:
    assert f"seed 000, 10.4 case {number};" in sources("required") + ";"


@pytest.mark.parametrize(
    "kind", ["invalid body", "unsupported model", "cancellation", "malformed stream order"]
)
def test_each_negative_kind_has_recipes(kind: str) -> None:
    assert sources("negative").count(f"seed 001, 14 {kind};") >= 2


def test_there_are_recipes_for_ignorable_declared_and_critical_extensions() -> None:
    needed = [recipe["required_capabilities"] for path, recipe in OURS if "extensions" in str(path)]
    assert any(not any("extension" in token for token in tokens) for tokens in needed)
    assert any("api.extension.nnrp.diagnostics" in tokens for tokens in needed)
    assert any(token.endswith(".critical") for tokens in needed for token in tokens)


def test_some_recipes_expect_something_of_diagnostics() -> None:
    assert any(recipe["expect"].get("diagnostics") for _, recipe in OURS)


def test_the_suites_eight_recipes_are_there_and_follow_our_schema_too() -> None:
    suite = sorted((root() / "suite" / "recipes").glob("*.json"))
    assert len(suite) == 8
    for path in suite:
        check(load_json(path), RECIPE_SCHEMA, path.name)
        check(load_json(path), "suite/schemas/api-profile-recipe.schema.json", path.name)


@pytest.mark.parametrize(("path", "recipe"), OURS, ids=[path.stem for path, _ in OURS])
def test_each_of_our_recipes_says_what_it_shows_and_is_named_like_its_file(
    path: Path, recipe: dict[str, str]
) -> None:
    assert recipe["title"].endswith(".")
    assert recipe["id"] == f"nnrp-sched.{path.stem}"


def test_a_parameter_is_filled_in_wherever_it_is_a_whole_string() -> None:
    (recipe,) = [each for each in RECIPES if each.id == "openai-compatible.chat.streaming-text"]
    assert recipe.filled_in("served", {})["request"]["body"]["model"] == "served"
    assert recipe.filled_in("served", {"MODEL_ID": "x"})["request"]["body"]["model"] == "x"


def test_a_model_that_is_there_to_fail_is_not_replaced() -> None:
    (recipe,) = [each for each in RECIPES if each.id == "openai-compatible.chat.backend-error"]
    assert recipe.filled_in("served", {})["request"]["body"]["model"] == "backend-error"


def written(folder: Path, **members: object) -> Path:
    recipe = json.loads((root() / "required" / "streaming-chat.json").read_text())
    (folder / "recipe.json").write_text(json.dumps({**recipe, **members}))
    return folder


def test_a_recipe_with_an_unknown_member_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"recipe\.json does not follow .*'surprise'"):
        load_recipes([written(tmp_path, surprise=1)])


def test_a_parameter_without_a_value_is_refused_by_name(tmp_path: Path) -> None:
    (recipe,) = load_recipes([written(tmp_path, parameters={})])
    with pytest.raises(RecipeError, match="MODEL_ID has no value"):
        recipe.filled_in("served", {})


def test_two_recipes_with_the_same_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="belongs to another recipe"):
        load_recipes([root() / "required", written(tmp_path)])


def test_a_folder_without_recipes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no recipes"):
        load_recipes([tmp_path])


@pytest.mark.parametrize("content", ["[]", "{", ""])
def test_a_file_that_holds_no_json_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "recipe.json").write_text(content)
    with pytest.raises(RecipeError, match=r"recipe\.json"):
        load_recipes([tmp_path])
