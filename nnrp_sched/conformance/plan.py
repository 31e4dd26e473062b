"""Recipes and a manifest to the suite's execution plan (wire digest 5.1)."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

from msgspec import Struct

from nnrp_sched.conformance.capability import critical_token, tokens_of
from nnrp_sched.conformance.files import PLAN_SCHEMA, RecipeError, check
from nnrp_sched.conformance.recipe import Case, Recipe, case_of
from nnrp_sched.profile.json_values import JsonObject

Selection = Literal["selected", "not_claimed", "informational"]

_SELECTIONS: Final[tuple[Selection, ...]] = ("selected", "not_claimed", "informational")
_STATUSES: Final = ("mandatory", "optional", "experimental", "deprecated")
_CLAIMABLE: Final = frozenset({"mandatory", "optional"})


class Plan(Struct, frozen=True):
    """What to run, and how every recipe was decided about."""

    document: JsonObject
    """The plan in the suite's form."""
    cases: list[Case]
    selections: dict[str, Selection] = {}
    """Each recipe's id, also of those that the plan leaves out; empty for a plan from a file."""

    @property
    def adapter(self) -> str:
        """The name of what is tested."""
        return str(self.document["adapter"])


def build_plan(
    recipes: Iterable[Recipe],
    manifest: JsonObject,
    *,
    model: str,
    parameters: Mapping[str, str] | None = None,
    capabilities: Collection[str] = (),
    critical_extensions: Collection[str] = (),
    output: str = "artifacts",
) -> Plan:
    """Select the recipes that the manifest claims.

    `model` stands in for `example-model`, `parameters` override the recipes' own, `capabilities`
    are the harness's beside the manifest's, `critical_extensions` names those whose cases are
    wanted. `output` is the folder of the artifacts' paths. Raises `RecipeError` when nothing is
    selected or a name in `parameters` or `critical_extensions` belongs to no recipe.
    """
    every = list(recipes)
    wanted = {critical_token(name) for name in critical_extensions}
    declared = tokens_of(manifest) | frozenset(capabilities)
    selections: dict[str, Selection] = {
        recipe.id: _select(recipe, declared, wanted) for recipe in every
    }
    given = dict(parameters or {})
    unknown = given.keys() - {name for recipe in every for name in recipe.parameters}
    if unknown:
        raise RecipeError(f"no recipe has the parameters {', '.join(sorted(unknown))}")
    needed = {token for recipe in every for token in recipe.required_capabilities}
    strange = [name for name in critical_extensions if critical_token(name) not in needed]
    if strange:
        raise RecipeError(f"no recipe is of the critical extensions {', '.join(strange)}")
    chosen = [recipe for recipe in every if selections[recipe.id] == "selected"]
    if not chosen:
        raise RecipeError("the capability manifest claims nothing that a recipe covers")
    documents = [recipe.filled_in(model, given) for recipe in chosen]
    document: JsonObject = {
        "profile": manifest["profile"],
        "schema_version": manifest["schema_version"],
        "adapter": manifest["adapter"],
        "artifacts": {
            "results_path": f"{output}/results.json",
            "evidence_dir": f"{output}/evidence",
        },
        "coverage_matrix": matrix(every, selections),
        "cases": documents,
    }
    check(document, PLAN_SCHEMA, "the plan")
    return Plan(document, [case_of(case) for case in documents], selections)


def read_plan(document: JsonObject) -> Plan:
    """A plan from a file, the suite's own included; raises `RecipeError`."""
    check(document, PLAN_SCHEMA, "the plan")
    cases = [case_of(case) for case in document["cases"]]
    doubled = {case.id for case in cases if [each.id for each in cases].count(case.id) > 1}
    if doubled:
        raise RecipeError(f"the plan has several cases named {', '.join(sorted(doubled))}")
    return Plan(document, cases)


def matrix(recipes: Iterable[Recipe], selections: Mapping[str, Selection]) -> list[JsonObject]:
    """The suite's coverage matrix: a row for each operation with what its cases ask for."""
    groups: dict[tuple[str, tuple[str, ...]], list[Recipe]] = {}
    for recipe in recipes:
        key = recipe.operation, tuple(sorted(recipe.required_capabilities))
        groups.setdefault(key, []).append(recipe)
    return [
        {
            "feature": operation,
            "required_capabilities": list(capabilities),
            "summary": summary(selections[recipe.id] for recipe in group),
            "statuses": {
                f"{status}_cases": sum(recipe.status == status for recipe in group)
                for status in _STATUSES
            },
            "case_ids": [recipe.id for recipe in group],
        }
        for (operation, capabilities), group in groups.items()
    ]


def summary(selections: Iterable[Selection]) -> JsonObject:
    """How many recipes were decided about in which way."""
    every = list(selections)
    return {f"{selection}_cases": every.count(selection) for selection in _SELECTIONS}


def _select(recipe: Recipe, declared: Collection[str], wanted: Collection[str]) -> Selection:
    needed = set(recipe.required_capabilities)
    if not needed <= set(declared):
        return "not_claimed"
    critical = {token for token in needed if token.endswith(".critical")}
    if recipe.status not in _CLAIMABLE or not critical <= set(wanted):
        return "informational"
    return "selected"
