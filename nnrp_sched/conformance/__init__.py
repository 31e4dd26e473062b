"""Conformance: recipes to a plan, a plan to results, over a real wire (seed 000, section 10).

The checks here are written from the profile's text and share no code with the server's or the
client's mapping; only the packets are sent and read by the `wire` package.
"""

from nnrp_sched.conformance.capability import manifest_of, tokens_of
from nnrp_sched.conformance.files import RecipeError, default_folders, load_json
from nnrp_sched.conformance.peer import fetch_capabilities
from nnrp_sched.conformance.plan import Plan, build_plan, read_plan
from nnrp_sched.conformance.recipe import Recipe, load_recipes
from nnrp_sched.conformance.report import report_of, results_of, write_artifacts
from nnrp_sched.conformance.runner import CaseResult, Targets, run_cases

__all__ = [
    "CaseResult",
    "Plan",
    "Recipe",
    "RecipeError",
    "Targets",
    "build_plan",
    "default_folders",
    "fetch_capabilities",
    "load_json",
    "load_recipes",
    "manifest_of",
    "read_plan",
    "report_of",
    "results_of",
    "run_cases",
    "tokens_of",
    "write_artifacts",
]
