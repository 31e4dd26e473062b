"""The entry point that vLLM calls in every process, mostly to find that nothing is asked."""

import subprocess
import sys

import pytest

from nnrp_sched.errors import UnsupportedVllm
from nnrp_sched_patches import install, plugin

_LOAD = """
import sys
before = set(sys.modules)
from nnrp_sched_patches.plugin import load
load()
print(*sorted(set(sys.modules) - before), sep="\\n")
"""


@pytest.mark.parametrize("value", [None, "", "0", "true", "yes"])
def test_without_the_variable_loading_imports_nothing_more(value: str | None) -> None:
    environment = {"PYTHONPATH": ".:patches"}
    if value is not None:
        environment[plugin.PATCH_VARIABLE] = value
    printed = subprocess.run(
        [sys.executable, "-c", _LOAD], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == ["nnrp_sched_patches", "nnrp_sched_patches.plugin"]


@pytest.fixture
def misfit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that asks for patches and whose vLLM does not fit."""

    def refuse() -> None:
        raise UnsupportedVllm("vLLM 9.9 has no seams")

    # The real one may be active in this worker, for the engine that its other tests share.
    monkeypatch.setattr(install, "_LAYER", install.PatchLayer())
    monkeypatch.setattr(install, "bind_installed", refuse)
    monkeypatch.setenv(plugin.PATCH_VARIABLE, "1")


def test_a_process_that_does_not_fit_says_so_and_stays_unpatched(
    misfit: None, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.load()
    assert "runs without the nnrp-sched patches: vLLM 9.9 has no seams" in caplog.text
    assert not install.status().active


def test_in_strict_mode_a_process_that_does_not_fit_fails(
    misfit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugin.STRICT_VARIABLE, "1")
    with pytest.raises(UnsupportedVllm, match="no seams"):
        plugin.load()
