"""What users install: one wheel with three packages, its entry points, and nothing else."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMBEDDINGS = ("openai", "agents", "pydantic-ai", "langchain")
PACKAGES = {"nnrp_sched", "nnrp_sched_patches", "nnrp_sched_orchestrator"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    checked = subprocess.run(
        [Path(sys.executable).parent / "check-wheel-contents", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_it_holds_the_three_typed_packages(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == PACKAGES
    for package in PACKAGES:
        assert f"{package}/py.typed" in names


def test_it_holds_every_module_of_the_tree(wheel: zipfile.ZipFile) -> None:
    roots = {ROOT, ROOT / "patches", ROOT / "orchestrator"}
    expected = {
        str(path.relative_to(root))
        for root in roots
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
    }
    assert expected == {name for name in wheel.namelist() if name.endswith(".py")}


def test_its_entry_points_are_the_command_and_the_plugin(wheel: zipfile.ZipFile) -> None:
    (name,) = [each for each in wheel.namelist() if each.endswith("entry_points.txt")]
    text = wheel.read(name).decode()
    assert "nnrp-sched = nnrp_sched.cli:main" in text
    assert "[vllm.general_plugins]\nnnrp_sched = nnrp_sched_patches.plugin:load" in text


def test_its_metadata_name_licence_and_extras(wheel: zipfile.ZipFile) -> None:
    (name,) = [each for each in wheel.namelist() if each.endswith("/METADATA")]
    text = wheel.read(name).decode()
    assert "License-Expression: Apache-2.0" in text
    for extra in ("vllm", "otlp", "prometheus", *EMBEDDINGS, "dev"):
        assert f"Provides-Extra: {extra}" in text
    assert "vllm<0.34,>=0.18; extra == 'vllm'" in text
