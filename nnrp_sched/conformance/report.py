"""Results and report in the suite's forms, and the evidence files (wire digest 5.1)."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from nnrp_sched.conformance.files import REPORT_SCHEMA, RESULTS_SCHEMA, RecipeError, check
from nnrp_sched.conformance.plan import Plan
from nnrp_sched.conformance.runner import CaseResult
from nnrp_sched.profile.json_values import JsonObject

PROTOCOL: Final = "nnrp-1-preview4"


def results_of(plan: Plan, results: Sequence[CaseResult]) -> JsonObject:
    """The results of a plan's cases, every one of them."""
    document: JsonObject = {
        "profile": plan.document["profile"],
        "schema_version": plan.document["schema_version"],
        "adapter": plan.adapter,
        "results": [_result(result) for result in results],
    }
    check(document, RESULTS_SCHEMA, "the results")
    return document


def report_of(plan: Plan, results: Sequence[CaseResult]) -> JsonObject:
    """The report: what was selected and why, and how the selected cases went."""
    outcomes = {result.case.id: result for result in results}
    selections = plan.selections or dict.fromkeys(outcomes, "selected")
    document: JsonObject = {
        "protocol_version": PROTOCOL,
        "implementation_name": plan.adapter,
        "summary": {
            "selected_cases": _count(selections.values(), "selected"),
            "not_claimed_cases": _count(selections.values(), "not_claimed"),
            "informational_cases": _count(selections.values(), "informational"),
            "passed_cases": sum(result.outcome == "passed" for result in results),
            "failed_cases": sum(result.outcome == "failed" for result in results),
        },
        "compatibility_matrix": plan.document["coverage_matrix"],
        "cases": [
            {"id": name, "selection": selection, **_outcome(outcomes.get(name))}
            for name, selection in selections.items()
        ],
    }
    check(document, REPORT_SCHEMA, "the report")
    return document


def write_artifacts(
    plan: Plan,
    results: Sequence[CaseResult],
    *,
    results_path: Path,
    evidence_folder: Path,
) -> None:
    """Write the results and one evidence file for each case."""
    write_json(results_path, results_of(plan, results))
    for result in results:
        evidence = {
            "id": result.case.id,
            "target": result.target,
            "outcome": result.outcome,
            "reasons": result.reasons,
            "request": msgspec.to_builtins(result.case.request),
            "seen": msgspec.to_builtins(result.seen),
        }
        write_json(evidence_folder / f"{result.case.id}.json", evidence)


def write_json(path: Path, document: Any) -> None:
    """Write a document, readable, into a folder that is made when it is not there.

    Raises `RecipeError` when it cannot be written.
    """
    make_folder(path.parent)
    try:
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
    except OSError as fault:
        raise RecipeError(f"cannot write {path}: {fault.strerror}") from fault


def make_folder(path: Path) -> None:
    """Make a folder that is to be written into; raises `RecipeError` when that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise RecipeError(f"cannot make the folder {path}: {fault.strerror}") from fault
    if not os.access(path, os.W_OK | os.X_OK):
        raise RecipeError(f"cannot write into the folder {path}")


def _count(values: Iterable[str], wanted: str) -> int:
    return list(values).count(wanted)


def _result(result: CaseResult) -> JsonObject:
    seen = result.seen
    known = {
        "target": result.target,
        "milliseconds": seen.milliseconds,
        "status_code": seen.status_code,
        "drop_reason": seen.drop_reason,
        "protocol_error": seen.protocol_error,
        "notices": seen.notices or None,
    }
    document: JsonObject = {
        "id": result.case.id,
        "outcome": result.outcome,
        # The schema wants a terminal even where none came; `message` then says so.
        "terminal": seen.terminal or "error",
        "events": seen.events,
        "diagnostics": {name: value for name, value in known.items() if value is not None},
    }
    if result.reasons:
        document["message"] = "; ".join(result.reasons)
    return document


def _outcome(result: CaseResult | None) -> JsonObject:
    if result is None:
        return {}
    return {"outcome": result.outcome, "reasons": result.reasons, "target": result.target}
