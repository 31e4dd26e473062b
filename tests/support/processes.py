"""Which processes there are, seen from outside of what is tested."""

import os
from pathlib import Path

import anyio

SECONDS = 20


def alive(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def in_group(group: int) -> list[int]:
    """The living processes of a process group."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and alive(int(name)):
            try:
                if os.getpgid(int(name)) == group:
                    found.append(int(name))
            except ProcessLookupError:
                pass
    return found


def with_variable(beginning: str) -> list[int]:
    """The living processes with an environment variable that begins so."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(each.startswith(beginning.encode()) for each in variables) and alive(int(name)):
                found.append(int(name))
    return found


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def written(path: Path, lines: int = 1) -> list[int]:
    """Wait until a file has so many numbers, one a line; them."""
    with anyio.fail_after(SECONDS):
        while True:
            text = _text(path)
            if text.count("\n") >= lines:
                return [int(word) for word in text.split()]
            await anyio.sleep(0.001)
