"""Every block of the README runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import SECONDS, run, serving

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
PYTHON = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [
    line.split("#")[0].strip()
    for language, text in BLOCKS
    if language == "sh"
    for line in text.splitlines()
]
DEFAULT = "nnrp://127.0.0.1:7437"


def test_every_block_is_of_a_kind_that_is_run_here() -> None:
    assert {language for language, _ in BLOCKS} == {"sh", "python"}
    kinds = {"make", "nnrp-sched"}
    assert {command.split()[0] for command in COMMANDS} == kinds


@pytest.mark.parametrize("source", PYTHON)
def test_each_python_block_runs_and_prints_an_answer(source: str, tmp_path: Path) -> None:
    assert len(source.splitlines()) <= 15
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        script = tmp_path / "example.py"
        script.write_text(source.replace(DEFAULT, ready["endpoints"][0]))
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    assert "OutputTextDelta" in done.stdout
    assert "status='completed'" in done.stdout


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
    import shlex

    name, *arguments = shlex.split(command)[1:]
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        variable = {f"NNRP_SCHED_{name.upper()}_ENDPOINT": ready["endpoints"][0]}
        done = run(name, *arguments, **variable)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_doctor_command_runs() -> None:
    assert json.loads(run("doctor", "--json").stdout)["checks"]


def test_the_readme_names_every_binding_with_its_tested_versions() -> None:
    from nnrp_sched_patches.bindings import FAMILIES

    text = (ROOT / "README.md").read_text()
    for family in FAMILIES:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{family.name}`"))
        for version in family.tested:
            assert version in row
