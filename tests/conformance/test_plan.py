"""Which recipes a manifest selects, and the plan in the suite's form."""

import copy
from typing import Any

import pytest

from nnrp_sched.conformance import (
    Plan,
    RecipeError,
    build_plan,
    default_folders,
    load_recipes,
    manifest_of,
    read_plan,
    tokens_of,
)
from nnrp_sched.conformance.capability import SCRIPTED
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.server.control import capabilities

RECIPES = load_recipes(default_folders())
SUITE = load_recipes(default_folders()[:1])
DOCUMENT = capabilities(ScriptedEngine())


def manifest(**chat: bool) -> dict[str, Any]:
    """The scripted server's manifest, its chat operation changed."""
    made = manifest_of(copy.deepcopy(DOCUMENT))
    made["operations"][0].update(chat)
    return made


def plan_for(made: dict[str, Any], **options: Any) -> Plan:
    return build_plan(RECIPES, made, model="example-model", capabilities={SCRIPTED}, **options)


def test_the_manifest_comes_from_the_capability_document_without_its_models() -> None:
    made = manifest()
    assert made["adapter"] == "nnrp-sched"
    assert made["operations"] == DOCUMENT["operations"]
    assert "models" in DOCUMENT
    assert "models" not in made


@pytest.mark.parametrize("broken", ["operations", "compatibility_levels", "profile"])
def test_a_document_that_makes_no_valid_manifest_is_refused_by_name(broken: str) -> None:
    document = {name: value for name, value in DOCUMENT.items() if name != broken}
    with pytest.raises(RecipeError, match=f"'{broken}' is a required property"):
        manifest_of(document)


def test_the_tokens_are_levels_operations_features_and_extensions() -> None:
    made = manifest(tool_calls=False)
    made["extensions"] = [
        {"name": "mine", "critical": False},
        {"name": "yours", "critical": True},
    ]
    assert tokens_of(made) == {
        "api.level1",
        "api.chat.completions.create",
        "api.streaming",
        "api.non_streaming",
        "api.cancellation",
        "api.extension.mine",
        "api.extension.yours",
        "api.extension.yours.critical",
    }


def test_every_suite_recipe_is_selected_for_the_scripted_server() -> None:
    plan = build_plan(SUITE, manifest(), model="example-model")
    assert len(plan.cases) == 8
    assert set(plan.selections.values()) == {"selected"}


@pytest.mark.parametrize(
    ("feature", "recipe"),
    [
        ("tool_calls", "openai-compatible.chat.tool-call-delta"),
        ("cancellation", "openai-compatible.chat.cancellation"),
        ("non_streaming", "openai-compatible.chat.non-streaming"),
        ("streaming", "openai-compatible.chat.streaming-text"),
    ],
)
def test_a_recipe_whose_feature_is_not_declared_is_not_claimed(feature: str, recipe: str) -> None:
    plan = plan_for(manifest(**{feature: False}))
    assert plan.selections[recipe] == "not_claimed"
    assert recipe not in {case.id for case in plan.cases}


def critical_manifest() -> dict[str, Any]:
    made = manifest()
    made["extensions"].append({"name": "example.critical-policy", "critical": True})
    return made


CRITICAL = "nnrp-sched.critical-by-selection-only"


def test_a_case_of_a_critical_extension_needs_explicit_selection() -> None:
    assert plan_for(manifest()).selections[CRITICAL] == "not_claimed"
    assert plan_for(critical_manifest()).selections[CRITICAL] == "informational"
    asked = plan_for(critical_manifest(), critical_extensions=["example.critical-policy"])
    assert asked.selections[CRITICAL] == "selected"


def test_no_mandatory_case_needs_an_extension() -> None:
    """Extension behaviour must not be required for Level 1 (seed 000, 10.3)."""
    bare = manifest()
    bare["extensions"] = []
    plan = plan_for(bare)
    left_out = {name for name, selection in plan.selections.items() if selection == "not_claimed"}
    assert left_out == {
        CRITICAL,
        "nnrp-sched.diagnostics",
        "nnrp-sched.diagnostics-of-a-cancellation",
        "nnrp-sched.capability-document",  # NNRP itself has no way to ask for the document.
    }


def test_the_matrix_counts_every_recipe_once() -> None:
    matrix = plan_for(manifest()).document["coverage_matrix"]
    named = [name for row in matrix for name in row["case_ids"]]
    assert sorted(named) == sorted(recipe.id for recipe in RECIPES)
    for row in matrix:
        assert sum(row["summary"].values()) == len(row["case_ids"])
        assert sum(row["statuses"].values()) == len(row["case_ids"])


def test_a_plan_that_was_written_is_read_as_it_was() -> None:
    plan = plan_for(manifest())
    assert read_plan(plan.document).cases == plan.cases


def test_a_plan_with_a_case_twice_is_refused() -> None:
    document = copy.deepcopy(plan_for(manifest()).document)
    document["cases"].append(document["cases"][0])
    with pytest.raises(RecipeError, match="several cases named"):
        read_plan(document)


def test_a_plan_with_an_unknown_member_is_refused() -> None:
    document = {**plan_for(manifest()).document, "surprise": 1}
    with pytest.raises(RecipeError, match="surprise"):
        read_plan(document)


def test_a_case_with_an_unknown_harness_instruction_is_refused() -> None:
    document = copy.deepcopy(plan_for(manifest()).document)
    document["cases"][0]["request"]["harness"] = {"jump": True}
    with pytest.raises(RecipeError, match="jump"):
        read_plan(document)


def test_a_parameter_that_no_recipe_has_is_refused() -> None:
    with pytest.raises(RecipeError, match="MODELL"):
        plan_for(manifest(), parameters={"MODELL": "x"})


def test_a_manifest_that_claims_nothing_is_refused() -> None:
    made = manifest()
    made["compatibility_levels"] = [2]
    with pytest.raises(RecipeError, match="claims nothing"):
        plan_for(made)
