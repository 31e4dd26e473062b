"""What `nnrp-sched conformance` does: plan for a server, run the cases, write what came of it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from nnrp_sched.cli.child import started_server
from nnrp_sched.conformance import (
    CaseResult,
    Plan,
    Targets,
    build_plan,
    default_folders,
    fetch_capabilities,
    load_json,
    load_recipes,
    manifest_of,
    report_of,
    run_cases,
    write_artifacts,
)
from nnrp_sched.conformance.capability import SCRIPTED, check_manifest, model_ids
from nnrp_sched.conformance.recipe import EXAMPLE_MODEL
from nnrp_sched.conformance.report import make_folder, write_json
from nnrp_sched.profile.json_values import JsonObject
from nnrp_sched.transport import ClientSecurity, parse_endpoint

_FIXTURE_SECONDS: Final = 30.0

Told = Callable[[CaseResult], None]
"""Hears of each case as it ends."""


class Server(Struct, frozen=True):
    """The server to try; None: a scripted one."""

    endpoint: str | None
    security: ClientSecurity


class Selection(Struct, frozen=True):
    """Which recipes, for which manifest, with which parameters."""

    folders: tuple[Path, ...]
    suite_only: bool
    manifest: Path | None
    parameters: dict[str, str]
    critical_extensions: tuple[str, ...]


async def try_server(
    server: Server,
    selection: Selection,
    output: Path | None,
    seconds: float,
    *,
    told: Told,
) -> tuple[Plan, list[CaseResult]]:
    """Plan for a server, run the plan, and write everything into `output` where it is given."""
    if output is not None:
        make_folder(output)  # Now, not when the results of a long run would be lost with it.
    async with _targets(server) as targets:
        plan, models = await _planned(targets, selection, str(output or "artifacts"))
        targets = replace(targets, models=tuple(models))
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


async def plan_for(server: Server, selection: Selection, output: str) -> Plan:
    """The plan for a server, or for a manifest without one."""
    if selection.manifest is not None:
        return _built(selection, load_json(selection.manifest), [], output)
    async with _targets(server) as targets:
        plan, _ = await _planned(targets, selection, output)
    return plan


async def run_plan(plan: Plan, server: Server, seconds: float, *, told: Told) -> list[CaseResult]:
    """Run a plan on a server."""
    async with _targets(server) as targets:
        return await run_cases(plan.cases, targets, seconds=seconds, told=told)


async def _planned(targets: Targets, selection: Selection, output: str) -> tuple[Plan, list[str]]:
    """The plan for a server, and the models it has, as far as it says."""
    if selection.manifest is not None:
        return _built(selection, load_json(selection.manifest), [], output), []
    document = await fetch_capabilities(targets.endpoint, targets.security)
    models = model_ids(document)
    return _built(selection, manifest_of(document), models, output), models


def _built(selection: Selection, manifest: JsonObject, models: list[str], output: str) -> Plan:
    check_manifest(manifest)
    folders = list(selection.folders) or default_folders()
    if selection.suite_only:
        folders = default_folders()[:1]
    return build_plan(
        load_recipes(folders),
        manifest,
        model=EXAMPLE_MODEL if EXAMPLE_MODEL in models or not models else models[0],
        parameters=selection.parameters,
        capabilities={SCRIPTED},
        critical_extensions=selection.critical_extensions,
        output=output,
    )


@asynccontextmanager
async def _targets(server: Server) -> AsyncGenerator[Targets]:
    """Where to run, and a scripted server: the same when no endpoint was named."""
    async with AsyncExitStack() as stack:
        child = await stack.enter_async_context(
            started_server(
                *("serve", "--engine", "scripted", "--listen", "nnrp://127.0.0.1:0"),
                seconds=_FIXTURE_SECONDS,
            )
        )
        fixture = parse_endpoint(str(child.ready["endpoints"][0]))
        if server.endpoint is None:
            yield Targets(fixture, fixture)
        else:
            yield Targets(parse_endpoint(server.endpoint), fixture, security=server.security)
