"""The embedded model's cache, over a stand-in for download and conversion."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nnrp_sched_patches import embedded_model
from nnrp_sched_patches.embedded_conversion import llama_name
from nnrp_sched_patches.embedded_model import (
    EmbeddedModelError,
    embedded_model_path,
    engine_arguments,
    faults,
    model_directory,
    prepare,
)

_FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 100}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """An empty cache; the list tells how often the model was made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    times: list[Path] = []

    def run(command: list[str | Path], failure: str) -> None:
        folder = Path(command[-1])
        times.append(folder)
        for name, content in _FILES.items():
            (folder / name).write_bytes(content)

    def download(scratch: Path) -> Path:
        return scratch / "file.gguf"

    monkeypatch.setattr(embedded_model, "_download", download)
    monkeypatch.setattr(embedded_model, "_run", run)
    return times


def test_the_model_is_made_once_and_then_only_checked(made: list[Path]) -> None:
    assert embedded_model_path() is None
    folder = prepare()
    assert folder == prepare() == embedded_model_path()
    assert len(made) == 1
    assert {path.name for path in folder.iterdir()} == {*_FILES, "manifest.json"}


def test_the_cache_is_where_the_xdg_specification_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert embedded_model.cache_directory() == tmp_path / ".cache" / "nnrp-sched"


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "manifest"])
def test_damage_is_noticed_and_repaired(made: list[Path], damage: str) -> None:
    folder = prepare()
    if damage == "truncated":
        (folder / "model.safetensors").write_bytes(b"weights")
    elif damage == "changed":
        (folder / "config.json").write_bytes(b"[]")
    elif damage == "missing":
        (folder / "config.json").unlink()
    else:
        (folder / "manifest.json").write_bytes(b"nonsense")
    assert embedded_model_path() is None
    assert faults(prepare(), every_digest=True) == []
    assert len(made) == 2


def test_a_changed_bit_in_a_large_file_is_found_by_its_digest(
    made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_model, "_SMALL_FILE_BYTES", 100)
    folder = prepare()
    (folder / "model.safetensors").write_bytes(b"weighty" * 100)
    assert faults(folder) == []
    assert "corrupted" in faults(folder, every_digest=True)[0]


def test_a_failure_leaves_no_half_made_model(
    made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str | Path], failure: str) -> None:
        Path(command[-1], "config.json").write_bytes(b"{")
        raise EmbeddedModelError("no network")

    monkeypatch.setattr(embedded_model, "_run", fail)
    with pytest.raises(EmbeddedModelError, match="no network"):
        prepare()
    assert [path.suffix for path in model_directory().parent.iterdir()] == [".lock"]


def test_what_a_killed_preparation_left_is_cleared_away(made: list[Path]) -> None:
    abandoned = model_directory().parent / ".preparing-abandoned"
    abandoned.mkdir(parents=True)
    (abandoned / "file").write_bytes(b"half")
    prepare()
    assert not abandoned.exists()


def test_too_small_a_disk_is_told_before_the_download(
    made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=100 << 20)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(EmbeddedModelError, match="100 MB are free"):
        prepare()
    assert made == []


def test_a_cache_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nnrp-sched").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(EmbeddedModelError, match="cannot be written"):
        prepare()


def test_a_failed_command_is_told_with_its_last_words() -> None:
    code = "import sys; sys.exit('ERROR: no matching distribution')"
    with pytest.raises(EmbeddedModelError, match="check the network: ERROR: no matching"):
        embedded_model._run(  # pyright: ignore[reportPrivateUsage]
            [sys.executable, "-c", code], "check the network"
        )


_SLOW = """
import sys, time
from pathlib import Path
from nnrp_sched_patches import embedded_model

def run(command, failure):
    Path(command[-1], "config.json").write_text("{}")
    print("made", flush=True)

embedded_model._download = lambda scratch: scratch / "file.gguf"
embedded_model._run = run
print(embedded_model.prepare())
"""


def test_of_several_preparing_at_once_one_does_the_work(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": ".:patches", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", _SLOW]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    printed = [process.communicate(timeout=50)[0].split() for process in running]
    assert sum(words.count("made") for words in printed) == 1
    assert len({words[-1] for words in printed}) == 1


def test_the_users_flags_replace_the_embedded_models_own() -> None:
    ours = engine_arguments(("--max_model_len=512", "--no-enforce-eager", "--dtype", "bfloat16"))
    assert "--max-model-len" not in ours
    assert "--enforce-eager" not in ours
    assert "--dtype" not in ours
    assert ours[ours.index("--max-num-seqs") + 1] == "8"


@pytest.mark.parametrize(
    ("gguf", "llama"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.29.attn_q.weight", "model.layers.29.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ],
)
def test_tensors_get_the_names_of_a_llama_checkpoint(gguf: str, llama: str) -> None:
    assert llama_name(gguf) == llama
