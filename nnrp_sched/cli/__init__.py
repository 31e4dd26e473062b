"""The command line: one module a command, imported when it is used."""

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NoReturn

import click

from nnrp_sched import __version__
from nnrp_sched.errors import NnrpSchedError

COMMANDS: dict[str, str] = {
    "run": "Start vLLM with an NNRP listener beside its HTTP server.",
    "serve": "Serve the scripted engine: the same server without vLLM.",
    "chat": "Send one chat to a server and print the answer.",
    "ps": "Show what runs and waits in a server's engine.",
    "cancel": "End operations in a server's engine, with receipts.",
    "capabilities": "Print a server's capability document.",
    "tool-host": "Run the tools of a Python module for agents that connect.",
    "conformance": "Try a server with the recipes of openai-compatible/1.",
    "doctor": "Check what is installed and say what to do about it.",
    "demo": "Run a program of agents on the embedded model; cancel, and see the receipts.",
    "model": "Prepare the embedded model.",
}
"""Every command with its line in `--help`; the module of the same name holds it (- as _)."""

_VARIABLES = "NNRP_SCHED"
"""How the variables of all flags begin."""


class _LazyGroup(click.Group):
    """Finds commands by name, so that `--help` does not import what it does not run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = import_module(f"nnrp_sched.cli.{name}").command
        assert isinstance(command, click.Command)
        for option in command.params:
            if isinstance(option, click.Option):
                # By itself click names it after the parameter, which is not always the flag.
                flag = max(option.opts, key=len).strip("-").replace("-", "_")
                option.envvar = f"{_VARIABLES}_{name}_{flag}".upper()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    context_settings={"auto_envvar_prefix": _VARIABLES, "show_default": True},
    epilog="Every flag can also be set by the variable NNRP_SCHED_<COMMAND>_<FLAG>. Exit codes: "
    "0 ok, 1 a check failed, 2 usage, 3 could not start, 4 unsupported vLLM or seam, "
    "5 peer unreachable or lost.",
)
@click.version_option(__version__, prog_name="nnrp-sched")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    help="What is logged, on stderr.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", help="How it is logged."
)
def root(log_level: str, log_format: str) -> None:
    """Scheduler-centred NNRP/1 serving for vLLM."""
    from nnrp_sched.cli.logs import configure_logging

    configure_logging(log_level, log_format)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with the code of its outcome."""
    try:
        result: Any = root.main(args=arguments, prog_name="nnrp-sched", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except NnrpSchedError as error:
        _fail([error])
    except ExceptionGroup as group:
        # Of work that was done side by side; anything else in it is a fault of ours.
        ours, others = group.split(NnrpSchedError)
        if ours is None or others is not None:
            raise
        _fail(list(_leaves(ours)))
    sys.exit(result if isinstance(result, int) else 0)


def _fail(errors: list[NnrpSchedError]) -> NoReturn:
    """Say each of the errors once, and exit with the code of the first."""
    for said in dict.fromkeys(map(str, errors)):
        click.echo(f"nnrp-sched: {said}", err=True)
    sys.exit(errors[0].exit_code)


def _leaves(group: ExceptionGroup[NnrpSchedError]) -> Iterator[NnrpSchedError]:
    for each in group.exceptions:
        if isinstance(each, ExceptionGroup):
            yield from _leaves(each)
        else:
            yield each
