"""`nnrp-sched conformance` as a user meets it."""

import json
from pathlib import Path

import pytest

from nnrp_sched.conformance.files import (
    MANIFEST_SCHEMA,
    PLAN_SCHEMA,
    REPORT_SCHEMA,
    RESULTS_SCHEMA,
    RecipeError,
    check,
    root,
)
from nnrp_sched.conformance.plan import read_plan
from tests.cli.test_commands import run, serving
from tests.support.certificates import certificates

SUITE = 8


def failing_recipe(folder: Path) -> Path:
    """A folder with one recipe that no server passes."""
    recipe = json.loads((root() / "required" / "streaming-chat.json").read_text())
    recipe["expect"]["events"] = [{"type": "response.never"}]
    (folder / "failing.json").write_text(json.dumps(recipe))
    return folder


def test_the_last_line_counts_and_the_code_is_0(tmp_path: Path) -> None:
    done = run("conformance", "--suite", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{SUITE} passed, 0 failed"
    documents = {
        name: json.loads((tmp_path / "out" / name).read_text())
        for name in ("plan.json", "results.json", "report.json")
    }
    check(documents["plan.json"], PLAN_SCHEMA, "plan")
    check(documents["results.json"], RESULTS_SCHEMA, "results")
    check(documents["report.json"], REPORT_SCHEMA, "report")
    evidence = {path.stem for path in (tmp_path / "out" / "evidence").iterdir()}
    assert evidence == {case["id"] for case in documents["plan.json"]["cases"]}


def test_a_failing_case_is_named_with_its_reason_and_the_code_is_1(tmp_path: Path) -> None:
    done = run("conformance", "--recipes", str(failing_recipe(tmp_path)))
    assert done.returncode == 1
    assert "failed  nnrp-sched.streaming-chat" in done.stdout
    assert "response.never came 0 times, expected 1" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"


def test_json_prints_the_report_and_nothing_else(tmp_path: Path) -> None:
    done = run("conformance", "--json", "--recipes", str(failing_recipe(tmp_path)))
    assert done.returncode == 1
    report = json.loads(done.stdout)
    check(report, REPORT_SCHEMA, "report")
    assert report["summary"]["failed_cases"] == 1


def test_a_named_endpoint_is_the_one_that_is_tried() -> None:
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        endpoint = ready["endpoints"][0]
        done = run("conformance", "--suite", "--json", "--endpoint", endpoint)
    report = json.loads(done.stdout)
    elsewhere = {case["id"] for case in report["cases"] if case["target"] != endpoint}
    assert elsewhere == {"openai-compatible.chat.tool-call-delta"}, "it is up to the model"


def test_a_protected_endpoint_is_tried_with_its_authority_and_token() -> None:
    files = certificates()
    flags = ("--tls-certificate", str(files.server), "--tls-key", str(files.server_key))
    with serving("--listen", "nnrps://127.0.0.1:0", *flags, "--token", "secret") as (_, ready):
        wanted = ("--suite", "--endpoint", ready["endpoints"][0])
        proof = ("--tls-ca", str(files.authority), "--token", "secret")
        allowed = run("conformance", *wanted, *proof)
        refused = run("conformance", *wanted, *proof[:2])
    assert allowed.stdout.splitlines()[-1] == f"{SUITE} passed, 0 failed"
    assert refused.returncode == 5
    assert "token" in refused.stderr


def test_plan_prints_what_run_plan_takes(tmp_path: Path) -> None:
    planned = run("conformance", "plan", "--suite", "--output", str(tmp_path / "artifacts"))
    assert planned.returncode == 0, planned.stderr
    check(json.loads(planned.stdout), PLAN_SCHEMA, "plan")
    (tmp_path / "plan.json").write_text(planned.stdout)
    results = tmp_path / "results.json"
    done = run(
        *("conformance", "run-plan", "--plan", str(tmp_path / "plan.json")),
        *("--results", str(results)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{SUITE} passed, 0 failed"
    check(json.loads(results.read_text()), RESULTS_SCHEMA, "results")
    assert len(list((tmp_path / "artifacts" / "evidence").iterdir())) == SUITE


def test_the_suites_own_sample_plan_runs(tmp_path: Path) -> None:
    sample = Path(__file__).parents[1] / "data" / "nnrp-conformance"
    plan = json.loads((sample / "api-profile-execution-plan.sample.json").read_text())
    plan["artifacts"] = {
        "results_path": str(tmp_path / "results.json"),
        "evidence_dir": str(tmp_path / "evidence"),
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    done = run("conformance", "run-plan", "--plan", str(tmp_path / "plan.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["adapter"] == plan["adapter"]
    assert [result["outcome"] for result in results["results"]] == ["passed"]


def test_a_plan_can_be_made_from_a_manifest_without_a_server(tmp_path: Path) -> None:
    manifest = Path(__file__).parents[1] / "data" / "nnrp-conformance"
    path = manifest / "api-profile-capabilities.sample.json"
    check(json.loads(path.read_text()), MANIFEST_SCHEMA, "manifest")
    done = run("conformance", "plan", "--suite", "--manifest", str(path))
    plan = json.loads(done.stdout)
    assert plan["adapter"] == "vllm-nnrp-adapter"
    assert len(plan["cases"]) == SUITE


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("conformance", "--parameter", "MODEL_ID"), "NAME=VALUE"),
        (("conformance", "--parameter", "MODELL=x"), "no recipe has the parameters MODELL"),
        (("conformance", "--critical-extension", "x.y"), "no recipe is of the critical extensions"),
        (("conformance", "run-plan"), "--plan"),
        (("conformance", "--endpoint", "nnrp://127.0.0.1:1", "plan"), "give it behind that"),
        (("conformance", "--token", "t", "run-plan", "--plan", __file__), "give it behind that"),
        (("conformance", "--output", "/proc/none"), "cannot make the folder /proc/none"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(arguments: tuple[str, ...], told: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_plan_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    done = run("conformance", "run-plan", "--plan", str(tmp_path / "plan.json"))
    assert done.returncode == 2
    assert "required property" in done.stderr


def test_an_endpoint_where_nobody_listens_ends_with_5() -> None:
    done = run("conformance", "--endpoint", "nnrp://127.0.0.1:1")
    assert done.returncode == 5
    assert "nobody answers" in done.stderr


@pytest.mark.parametrize("name", ["../escaped", "/tmp/absolute", "..", "a/b", "x" * 300, ""])
def test_a_case_whose_id_can_name_no_file_is_refused(tmp_path: Path, name: str) -> None:
    sample = Path(__file__).parents[1] / "data" / "nnrp-conformance"
    plan = json.loads((sample / "api-profile-execution-plan.sample.json").read_text())
    plan["cases"][0]["id"] = name
    with pytest.raises(RecipeError, match="name of its id"):
        read_plan(plan)
