"""`nnrp-sched conformance`: recipes to a plan, a plan to results, over a real wire."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click
from click.core import ParameterSource

from nnrp_sched.cli.conformance_work import Selection, Server, plan_for, run_plan, try_server
from nnrp_sched.cli.security import proving
from nnrp_sched.conformance import (
    CaseResult,
    Plan,
    load_json,
    read_plan,
    report_of,
    write_artifacts,
)
from nnrp_sched.conformance.report import make_folder
from nnrp_sched.transport import ClientSecurity

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def _options(*options: Option) -> Option:
    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


def _pairs(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"expected NAME=VALUE, not {text!r}")
        pairs[name] = value
    return pairs


_folder = click.Path(exists=True, file_okay=False, path_type=Path)
_file = click.Path(exists=True, dir_okay=False, path_type=Path)

_endpoint = _options(
    click.option(
        "--endpoint", help="The server to try. Default: a scripted one, started for the time of it."
    ),
    proving,
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
        callback=_pairs,
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
    security: ClientSecurity,
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
        _refuse_misplaced(context)
        return 0
    server = Server(endpoint, security)
    run = partial(
        try_server,
        server,
        Selection(**selection),
        output,
        seconds,
        told=_nothing if as_json else _tell_case,
    )
    plan, results = anyio.run(run)
    return _tell(plan, results, as_json)


def _refuse_misplaced(context: click.Context) -> None:
    """What stands before a subcommand would count for nothing, and another server be tried."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            raise click.UsageError(
                f"{option.opts[0]} of `conformance` itself is not taken over by "
                f"`{context.invoked_subcommand}`: give it behind that",
                context,
            )


@command.command("plan")
@_endpoint
@_selection
@click.option(
    "--output",
    default="artifacts",
    help="The folder that the plan names for results and evidence.",
)
def _plan_command(
    endpoint: str | None, security: ClientSecurity, output: str, **selection: Any
) -> None:
    """Print the execution plan in the suite's form."""
    server = Server(endpoint, security)
    plan = anyio.run(partial(plan_for, server, Selection(**selection), output))
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
    path: Path,
    results: Path | None,
    endpoint: str | None,
    security: ClientSecurity,
    seconds: float,
    as_json: bool,
) -> int:
    """Run an execution plan, the public suite's own for example, and write its results."""
    plan = read_plan(load_json(path))
    artifacts = plan.document["artifacts"]
    results_path = results or Path(artifacts["results_path"])
    evidence_folder = Path(artifacts["evidence_dir"])
    for folder in (results_path.parent, evidence_folder):
        make_folder(folder)
    run = partial(
        run_plan,
        plan,
        Server(endpoint, security),
        seconds,
        told=_nothing if as_json else _tell_case,
    )
    done = anyio.run(run)
    write_artifacts(plan, done, results_path=results_path, evidence_folder=evidence_folder)
    return _tell(plan, done, as_json)


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
