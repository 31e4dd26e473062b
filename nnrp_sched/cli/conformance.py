"""`nnrp-sched conformance`: recipes to a plan, a plan to results, over a real wire."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click
from msgspec import Struct

from nnrp_sched.cli.child import started_server
from nnrp_sched.conformance import (
    CaseResult,
    Plan,
    RecipeError,
    Targets,
    build_plan,
    default_folders,
    fetch_capabilities,
    load_json,
    load_recipes,
    manifest_of,
    read_plan,
    report_of,
    run_cases,
    write_artifacts,
)
from nnrp_sched.conformance.capability import SCRIPTED, check_manifest, model_ids
from nnrp_sched.conformance.recipe import EXAMPLE_MODEL
from nnrp_sched.conformance.report import write_json
from nnrp_sched.profile.json_values import JsonObject
from nnrp_sched.transport import parse_endpoint

_FIXTURE_SECONDS = 30.0

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def _options(*options: Option) -> Option:
    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


_folder = click.Path(exists=True, file_okay=False, path_type=Path)
_file = click.Path(exists=True, dir_okay=False, path_type=Path)

_endpoint = click.option(
    "--endpoint", help="The server to try. Default: a scripted one, started for the time of it."
)
_seconds = click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), default=60.0, help="Limit of each wait."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
_selection = _options(
    click.option(
        "--recipes",
        "folders",
        type=_folder,
        multiple=True,
        help="A folder of recipes; may be given several times. Default: the suite's and our own.",
    ),
    click.option("--suite", "suite_only", is_flag=True, help="Only the public suite's recipes."),
    click.option(
        "--manifest",
        type=_file,
        help="A capability manifest. Default: made from the server's capability document.",
    ),
    click.option(
        "--parameter",
        "parameters",
        multiple=True,
        metavar="NAME=VALUE",
        help="A value for a parameter of the recipes; MODEL_ID is by default the first model.",
    ),
    click.option(
        "--critical-extension",
        "critical_extensions",
        multiple=True,
        help="Run the cases of this critical extension too; may be given several times.",
    ),
)


class _Selection(Struct, frozen=True):
    folders: tuple[Path, ...]
    suite_only: bool
    manifest: Path | None
    parameters: tuple[str, ...]
    critical_extensions: tuple[str, ...]


@click.group("conformance", invoke_without_command=True)
@_endpoint
@_selection
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder for plan, results, report and evidence.",
)
@_seconds
@_json
@click.pass_context
def command(
    context: click.Context,
    /,
    endpoint: str | None,
    output: Path | None,
    seconds: float,
    as_json: bool,
    **selection: Any,
) -> int:
    """Try a server with the recipes of openai-compatible/1.

    Prints a line for each case, then how many passed and failed; exits with 1 when one failed.
    What only the scripted engine can be made to do runs on a scripted server started for it.

    \b
    Example:
      nnrp-sched conformance --endpoint nnrp://127.0.0.1:7437
    """
    if context.invoked_subcommand is not None:
        return 0
    run = partial(_try, endpoint, _Selection(**selection), output, seconds, quiet=as_json)
    plan, results = anyio.run(run)
    return _tell(plan, results, as_json)


@command.command("plan")
@_endpoint
@_selection
@click.option(
    "--output",
    default="artifacts",
    help="The folder that the plan names for results and evidence.",
)
def _plan_command(endpoint: str | None, output: str, **selection: Any) -> None:
    """Print the execution plan in the suite's form."""
    plan = anyio.run(partial(_plan_only, endpoint, _Selection(**selection), output))
    click.echo(json.dumps(plan.document, indent=2, ensure_ascii=False))


@command.command("run-plan")
@click.option("--plan", "path", type=_file, required=True, help="The execution plan.")
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the results go. Default: where the plan says, from the current folder.",
)
@_endpoint
@_seconds
@_json
def _run_plan_command(
    path: Path, results: Path | None, endpoint: str | None, seconds: float, as_json: bool
) -> int:
    """Run an execution plan, the public suite's own for example, and write its results."""
    plan = read_plan(load_json(path))
    done = anyio.run(partial(_run_plan, plan, endpoint, seconds, quiet=as_json))
    artifacts = plan.document["artifacts"]
    write_artifacts(
        plan,
        done,
        results_path=results or Path(artifacts["results_path"]),
        evidence_folder=Path(artifacts["evidence_dir"]),
    )
    return _tell(plan, done, as_json)


# --- the work -----------------------------------------------------------------------------------


async def _try(
    endpoint: str | None,
    selection: _Selection,
    output: Path | None,
    seconds: float,
    *,
    quiet: bool,
) -> tuple[Plan, list[CaseResult]]:
    async with _addresses(endpoint) as (target, fixture):
        plan, models = await _planned(target, selection, str(output or "artifacts"))
        targets = Targets(parse_endpoint(target), parse_endpoint(fixture), tuple(models))
        told = _nothing if quiet else _tell_case
        results = await run_cases(plan.cases, targets, seconds=seconds, told=told)
    if output is not None:
        write_json(output / "plan.json", plan.document)
        write_json(output / "report.json", report_of(plan, results))
        write_artifacts(
            plan,
            results,
            results_path=output / "results.json",
            evidence_folder=output / "evidence",
        )
    return plan, results


async def _plan_only(endpoint: str | None, selection: _Selection, output: str) -> Plan:
    if selection.manifest is not None:
        return _built(selection, load_json(selection.manifest), [], output)
    async with _addresses(endpoint) as (target, _):
        plan, _ = await _planned(target, selection, output)
    return plan


async def _run_plan(
    plan: Plan, endpoint: str | None, seconds: float, *, quiet: bool
) -> list[CaseResult]:
    async with _addresses(endpoint) as (target, fixture):
        targets = Targets(parse_endpoint(target), parse_endpoint(fixture))
        told = _nothing if quiet else _tell_case
        return await run_cases(plan.cases, targets, seconds=seconds, told=told)


async def _planned(target: str, selection: _Selection, output: str) -> tuple[Plan, list[str]]:
    """The plan for a server, and the models it has, as far as it says."""
    if selection.manifest is not None:
        return _built(selection, load_json(selection.manifest), [], output), []
    document = await fetch_capabilities(parse_endpoint(target))
    models = model_ids(document)
    return _built(selection, manifest_of(document), models, output), models


def _built(selection: _Selection, manifest: JsonObject, models: list[str], output: str) -> Plan:
    check_manifest(manifest)
    folders = list(selection.folders) or default_folders()
    if selection.suite_only:
        folders = default_folders()[:1]
    return build_plan(
        load_recipes(folders),
        manifest,
        model=EXAMPLE_MODEL if EXAMPLE_MODEL in models or not models else models[0],
        parameters=_parameters(selection.parameters),
        capabilities={SCRIPTED},
        critical_extensions=selection.critical_extensions,
        output=output,
    )


def _parameters(given: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise RecipeError(f"--parameter wants NAME=VALUE, not {text!r}")
        pairs[name] = value
    return pairs


@asynccontextmanager
async def _addresses(endpoint: str | None) -> AsyncGenerator[tuple[str, str]]:
    """Where to run, and a scripted server: the same when no endpoint was named."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            started_server(
                *("serve", "--engine", "scripted", "--listen", "nnrp://127.0.0.1:0"),
                seconds=_FIXTURE_SECONDS,
            )
        )
        fixture = str(server.ready["endpoints"][0])
        yield endpoint or fixture, fixture


# --- telling ------------------------------------------------------------------------------------


def _nothing(_result: CaseResult) -> None:
    """Nobody listens: the report comes whole at the end."""


def _tell_case(result: CaseResult) -> None:
    click.echo(f"{result.outcome}  {result.case.id}  ({result.seen.milliseconds:.0f} ms)")
    for reason in result.reasons:
        click.echo(f"        {reason}")


def _tell(plan: Plan, results: list[CaseResult], as_json: bool) -> int:
    failed = sum(result.outcome == "failed" for result in results)
    if as_json:
        click.echo(json.dumps(report_of(plan, results), ensure_ascii=False))
    else:
        left_out = [
            f"{name} ({selection.replace('_', ' ')})"
            for name, selection in plan.selections.items()
            if selection != "selected"
        ]
        if left_out:
            click.echo("not run: " + ", ".join(left_out))
        click.echo(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0
