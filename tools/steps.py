"""Pieces that every tool here is made of: telling, running, installing, failing. Stdlib only."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 1800.0
"""How long one step may take: the biggest downloads five gigabytes."""
WHEEL_LIMIT_S = 300.0
"""How long one wheel may take: the biggest has 500 MB."""
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Built for another torch than the CPU lanes'; they fail at import and no text model needs them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


class SetupError(Exception):
    """Something is missing on this machine; the text says what and what to do."""


def program() -> str:
    """The tool that runs, as its messages name it."""
    return Path(sys.argv[0]).stem


def say(text: str) -> None:
    """Tell what is going on, at once. On stderr: stdout belongs to what a tool prints."""
    print(f"{program()}: {text}", file=sys.stderr, flush=True)


def run(
    step: str,
    *command: str,
    environment: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> str:
    """Run a command and return its stdout; when it fails, the error tells what it printed."""
    started = time.monotonic()
    say(step)
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"{step}: not done after {limit_s:.0f} s, given up; check the network and try again"
        ) from None
    if done.returncode != 0:
        printed = (done.stdout[-4000:] + done.stderr[-4000:]).strip()
        failure = f"{step}: failed with code {done.returncode}.{advice(done.stderr)}"
        raise SetupError(f"{failure}\n{printed}")
    say(f"  done in {time.monotonic() - started:.0f} s")
    return done.stdout


def advice(stderr: str) -> str:
    """What to do about pip's most common failures."""
    if "No space left" in stderr:
        return " The disk is full."
    if any(sign in stderr for sign in ("Temporary failure", "NewConnectionError", "timed out")):
        return " The package index was not reached: check the network, proxy and PIP_INDEX_URL."
    return ""


def pip(step: str, python: Path, *arguments: str) -> str:
    """Run pip of an environment and return its stdout."""
    return run(step, str(python), "-m", "pip", *arguments)


def download_wheel(python: Path, requirement: str, folder: Path, *options: str) -> Path:
    """Download the wheel of one requirement, alone, into an empty folder; the wheel."""
    download = ("download", "-q", "--no-cache-dir", "--no-deps", "--only-binary=:all:")
    target = (*options, "--dest", str(folder), requirement)
    command = (str(python), "-m", "pip", *download, *target)
    run(f"downloading {requirement}", *command, limit_s=WHEEL_LIMIT_S)
    (wheel,) = folder.glob("*.whl")
    return wheel


Outcome = TypeVar("Outcome")


def first_that_works(first: Callable[[], Outcome], *others: Callable[[], Outcome]) -> Outcome:
    """Try one after the other until one does not fail; raises the last one's SetupError."""
    attempt = first
    for following in others:
        try:
            return attempt()
        except SetupError as error:
            # An index without the build asked for is no news; the last attempt tells everything.
            say(f"  {str(error).splitlines()[0]} Trying the next way")
            attempt = following
    return attempt()


def cache_directory() -> Path:
    """Where this project keeps what can be made again: `$XDG_CACHE_HOME/nnrp-sched`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path there is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "nnrp-sched"


def free_gib(folder: Path) -> float:
    """Free disk space where `folder` is or will be, in GiB."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free / 2**30


def digest(parts: Iterable[bytes]) -> str:
    """A digest of everything that something is made from."""
    made_from = hashlib.sha256()
    for part in parts:
        made_from.update(hashlib.sha256(part).digest())
    return made_from.hexdigest()


def chosen(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names given, or all that are known; raises SetupError for one that is not."""
    every = list(known)
    unknown = [name for name in names if name not in every]
    if unknown:
        raise SetupError(f"there is no {', '.join(unknown)}, only {', '.join(every)}")
    return list(names) or every


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold an advisory lock on `path`; the kernel frees it even when this process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process holds {path}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def finish(main: Callable[[], int]) -> None:
    """Run a tool and end the process with its exit code; failures become one line."""
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    try:
        code = main()
    except SetupError as error:
        print(f"{program()}: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print(f"{program()}: interrupted; run it again to continue", file=sys.stderr)
        code = 130
    sys.exit(code)
