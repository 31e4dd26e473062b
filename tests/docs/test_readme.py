"""Every block of the README runs."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from nnrp_sched.client import connect
from nnrp_sched.profile.workflow import Workflow
from tests.cli.test_commands import SECONDS, run, serving
from tests.support.pages import ROOT, printed_by
from tests.support.serving import script

BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
PYTHON = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [
    line.split("#")[0].strip()
    for language, text in BLOCKS
    if language == "sh"
    for line in text.splitlines()
]
PRINTED = (
    ("OutputTextDelta", "status='completed'"),
    ("You said: Name a colour. (Receipt(", "accepted=True, authoritative=True"),
)
"""What each Python block prints."""


def test_every_block_is_of_a_kind_that_is_run_here() -> None:
    assert {language for language, _ in BLOCKS} == {"sh", "python"}
    kinds = {"make", "nnrp-sched", "python"}
    assert {command.split()[0] for command in COMMANDS} == kinds


@pytest.mark.parametrize(("source", "printed"), list(zip(PYTHON, PRINTED, strict=True)))
def test_each_python_block_runs_and_prints_an_answer(
    source: str, printed: tuple[str, ...], tmp_path: Path
) -> None:
    assert len(source.splitlines()) <= 15
    output = printed_by(source, tmp_path)
    for text in printed:
        assert text in output


def test_the_program_of_agents_has_ten_lines() -> None:
    assert len([line for line in PYTHON[1].splitlines() if line.strip()]) == 10


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("python ")])
def test_each_example_that_is_named_runs(command: str) -> None:
    _, *arguments = shlex.split(command)
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        done = subprocess.run(
            [sys.executable, *arguments, "--endpoint", ready["endpoints"][0]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("make ")])
def test_each_make_command_is_a_target(command: str) -> None:
    """`make` itself would run this test again: a dry run shows that target and recipe exist."""
    done = subprocess.run(
        [*command.split(), "-n"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tools.setup" in done.stdout


@pytest.mark.parametrize(
    "command", [line for line in COMMANDS if line.startswith(("nnrp-sched chat", "nnrp-sched cap"))]
)
def test_each_client_command_runs(command: str) -> None:
    name, *arguments = shlex.split(command)[1:]
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        variable = {f"NNRP_SCHED_{name.upper()}_ENDPOINT": ready["endpoints"][0]}
        done = run(name, *arguments, **variable)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    "command",
    [line for line in COMMANDS if line.startswith(("nnrp-sched ps", "nnrp-sched cancel"))],
)
@pytest.mark.anyio
async def test_each_scheduling_command_shows_or_ends_what_runs(command: str) -> None:
    _, name, *arguments = shlex.split(command)
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready), anyio.fail_after(SECONDS):
        endpoint = ready["endpoints"][0]
        async with connect(endpoint) as connection, connection.session() as session:
            workflow = Workflow(program="nightly-report")
            chats = [session.chat(script(text="x", hold=True), workflow=workflow) for _ in range(7)]
            async with anyio.create_task_group() as tasks:
                for chat in chats:
                    tasks.start_soon(chat.result)
                while len((await session.queue()).operations) < len(chats):
                    pass
                # The ids of the README are those of the seventh operation of the first session.
                frame = str(chats[-1].name)
                arguments = [frame if each == "1.7" else each for each in arguments]
                process = await anyio.open_process(
                    [sys.executable, "-m", "nnrp_sched", name, *arguments, "--endpoint", endpoint]
                )
                assert process.stdout is not None
                text = b""
                while frame.encode() not in text:
                    text += await process.stdout.receive()
                if "--watch" in arguments:
                    process.terminate()
                code = await process.wait()
                await process.aclose()
                assert code == 0 or "--watch" in arguments
                tasks.cancel_scope.cancel()


def test_the_doctor_command_runs() -> None:
    assert json.loads(run("doctor", "--json").stdout)["checks"]


def test_the_readme_names_every_binding_with_its_tested_versions() -> None:
    from nnrp_sched_patches.bindings import FAMILIES

    text = (ROOT / "README.md").read_text()
    for family in FAMILIES:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{family.name}`"))
        for version in family.tested:
            assert version in row
