"""Finding the installed vLLM without importing it."""

import subprocess
import sys
from pathlib import Path

import pytest

from nnrp_sched_patches import version
from nnrp_sched_patches.version import InstalledVllm, installed_vllm, version_of_source


def _package(tmp_path: Path, version_file: str | None) -> Path:
    root = tmp_path / "vllm"
    root.mkdir()
    (root / "__init__.py").write_text("raise AssertionError('imported')\n")
    if version_file is not None:
        (root / "_version.py").write_text(version_file)
    return root


def test_the_version_is_read_from_the_source_without_importing_it(tmp_path: Path) -> None:
    root = _package(tmp_path, "__version__: str\n__version__ = version = '0.32.0+cpu'\n")
    assert version_of_source(root) == "0.32.0+cpu"


@pytest.mark.parametrize("text", [None, "def broken(", "__version__ = compute()\n"])
def test_a_source_that_states_no_version_has_none(tmp_path: Path, text: str | None) -> None:
    assert version_of_source(_package(tmp_path, text)) is None


@pytest.mark.parametrize(
    ("stated", "base"),
    [("0.32.0+cpu", "0.32.0"), ("0.31.0rc1", "0.31.0"), ("dev", None), (None, None)],
)
def test_versions_are_compared_without_their_local_part(
    stated: str | None, base: str | None
) -> None:
    found = InstalledVllm(root=Path("/vllm"), version=stated).base_version
    assert (None if found is None else str(found)) == base


def test_the_installed_package_is_found_in_a_process_that_never_imports_it(tmp_path: Path) -> None:
    _package(tmp_path, "__version__ = '0.32.0'\n")
    code = (
        "import sys; from nnrp_sched_patches.version import installed_vllm;"
        "found = installed_vllm(); print(found.version, found.root, 'vllm' in sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:.:patches"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.split() == ["0.32.0", str(tmp_path / "vllm"), "False"]


def test_no_vllm_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "find_spec", dict[str, None]().get)
    assert installed_vllm() is None
