"""`run --patch-vllm` on a vLLM that does not match: exit code 4, before any engine starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nnrp_sched_patches.version import installed_vllm

SECONDS = 120


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A vLLM package on its own path: links to the installed one, replaceable file by file."""
    installed = installed_vllm()
    assert installed is not None, "vLLM is not installed: run make setup"
    link_tree(installed.root, tmp_path / "vllm")
    return tmp_path / "vllm"


def link_tree(source: Path, target: Path) -> None:
    """Link a folder's entries, so that each can be replaced by itself."""
    target.mkdir()
    for entry in source.iterdir():
        (target / entry.name).symlink_to(entry)


def replace(root: Path, relative: str, old: str, new: str) -> None:
    """Change a module of the copy, and of the copy only."""
    *folders, name = Path(relative).parts
    folder = root
    for each in folders:
        folder /= each
        if folder.is_symlink():
            real = folder.resolve()
            folder.unlink()
            link_tree(real, folder)
    module = folder / name
    text = module.read_text()
    assert old in text
    module.unlink()
    module.write_text(text.replace(old, new))


def run(copy: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`nnrp-sched run` with the copy in place of the installed vLLM."""
    return subprocess.run(
        [sys.executable, "-m", "nnrp_sched", "run", "--listen", "nnrp://127.0.0.1:0", *arguments],
        env={**os.environ, "PYTHONPATH": str(copy.parent), **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_an_unknown_version_is_named_with_the_tested_ones(copy: Path) -> None:
    (copy / "_version.py").unlink()
    (copy / "_version.py").write_text('__version__ = version = "0.20.0"\n')
    done = run(copy, "--patch-vllm")
    assert done.returncode == 4
    assert "0.20.0" in done.stderr
    assert "tested on a real engine" in done.stderr
    assert "0.32.0" in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("module", "old", "new", "seam"),
    [
        ("v1/engine/core.py", "self.step_fn", "self.renamed_fn", "EngineCore.step_fn"),
        ("v1/engine/async_llm.py", "def errored", "def renamed", "AsyncLLM.errored"),
        (
            "v1/engine/core_client.py",
            "async def call_utility_async",
            "async def renamed_utility",
            "AsyncMPClient.call_utility_async",
        ),
    ],
)
def test_a_missing_seam_is_named(copy: Path, module: str, old: str, new: str, seam: str) -> None:
    replace(copy, module, old, new)
    done = run(copy, "--patch-vllm")
    assert done.returncode == 4
    assert seam in done.stderr
    assert "0.32.0" in done.stderr
    assert done.stdout == ""


def test_the_rust_frontend_is_refused(copy: Path) -> None:
    done = run(copy, "--patch-vllm", VLLM_USE_RUST_FRONTEND="1")
    assert done.returncode == 4
    assert "VLLM_USE_RUST_FRONTEND" in done.stderr


def test_doctor_names_the_missing_seam_and_exits_with_1(copy: Path) -> None:
    replace(copy, "v1/engine/core.py", "self.step_fn", "self.renamed_fn")
    done = subprocess.run(
        [sys.executable, "-m", "nnrp_sched", "doctor"],
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    (line,) = [
        each for each in done.stdout.splitlines() if each.lstrip().startswith("failed    seam")
    ]
    assert "EngineCore.step_fn" in line


def test_without_vllm_run_says_how_to_get_it(tmp_path: Path) -> None:
    # Loaded before anything else: the import system does not find vLLM any more.
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, path=None, target=None: (\n"
        "    None if name == 'vllm' else find(name, path, target)\n"
        ")\n"
    )
    done = run(tmp_path / "nothing", "--patch-vllm")
    assert done.returncode == 3
    assert "pip install" in done.stderr
