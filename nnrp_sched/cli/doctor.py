"""`nnrp-sched doctor`: what is here, what is missing, what to do."""

import json
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click
import msgspec

from nnrp_sched import __version__
from nnrp_sched.settings import VARIABLES, value

_LIBRARIES = ("anyio", "click", "msgspec", "packaging", "wrapt")


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--scheduler-cls",
    metavar="MODULE.CLASS",
    help="A scheduler of yours, to see whether the patch layer works with it. Imports it.",
)
def command(as_json: bool, scheduler_cls: str | None) -> int:
    """Check what is installed and say what to do about it.

    Looks at versions, at every place in vLLM's source that the patch layer relies on, at whether
    vLLM would load the plugin and beside whom, at the embedded model and at the environment. Starts
    nothing, and without --scheduler-cls imports nothing of vLLM. Exits with 1 when a check failed.
    """
    from nnrp_sched_patches.diagnosis import checks

    found = checks(scheduler_cls)
    report: dict[str, Any] = {
        "versions": {
            "nnrp-sched": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in _LIBRARIES},
        },
        "checks": msgspec.to_builtins(found),
        "environment": [
            {"name": variable.name, "value": setting, "source": source, "meaning": variable.meaning}
            for variable in VARIABLES
            for setting, source in (value(variable),)
        ],
        "ok": all(check.status != "failed" for check in found),
    }
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print(report)
    return 0 if report["ok"] else 1


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _print(report: dict[str, Any]) -> None:
    versions = ", ".join(f"{name} {found}" for name, found in report["versions"].items())
    click.echo(f"Versions: {versions}")
    click.echo("Checks:")
    width = min(60, max(len(check["name"]) for check in report["checks"]))
    indent = " " * (2 + 8 + 2)
    for check in report["checks"]:
        click.echo(f"  {check['status']:8}  {check['name']:{width}}  {check['found']}")
        if check["advice"]:
            click.echo(f"{indent}→ {check['advice']}")
    click.echo("Environment:")
    for variable in report["environment"]:
        click.echo(
            f"  {variable['name']}={variable['value']} ({variable['source']}): "
            f"{variable['meaning']}"
        )
    failed = [check["name"] for check in report["checks"] if check["status"] == "failed"]
    columns = shutil.get_terminal_size().columns
    verdict = "All checks passed." if not failed else f"Failed: {', '.join(failed)}"
    click.echo(verdict if len(verdict) < 4 * columns else f"{len(failed)} checks failed.")
