"""Starts that must fail with a text for the user, on a real vLLM."""

import os
import shutil
import socket
from pathlib import Path

import anyio
import pytest

from nnrp_sched.errors import StartError, UnsupportedVllm
from nnrp_sched_patches import bindings, embedded_model, install
from nnrp_sched_patches.http_server import address_of
from nnrp_sched_patches.launch import LaunchOptions, launch
from nnrp_sched_patches.seam import Seam, SeamKind

pytestmark = pytest.mark.anyio


async def _refusal(options: LaunchOptions, exit_code: int = 3) -> str:
    with anyio.fail_after(200), pytest.raises(StartError) as failure:
        async with launch(options):
            pass
    assert failure.value.exit_code == exit_code
    return str(failure.value)


async def test_a_flag_that_vllm_does_not_have() -> None:
    options = LaunchOptions(model="m", vllm_arguments=("--no-such-flag",))
    assert await _refusal(options, exit_code=2) == (
        "vLLM does not take these arguments: unrecognized arguments: --no-such-flag"
    )


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (("--port", "8001"), "--http"),
        (("--host=0.0.0.0",), "--http"),
        (("--uds", "/tmp/a.sock"), "--listen"),
        (("--model", "another"), "--model"),
        (("--api-server-count", "2"), "--api-server-count"),
        (("--enforce-eager", "another"), "--model"),
    ],
)
async def test_a_flag_that_would_be_ignored_is_refused_with_what_to_use(
    arguments: tuple[str, ...], instead: str
) -> None:
    options = LaunchOptions(model="m", vllm_arguments=arguments)
    assert instead in await _refusal(options, exit_code=2)


async def test_a_model_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = await _refusal(LaunchOptions(model="nobody/no-such-model"))
    assert "no-such-model" in text


async def test_a_model_folder_that_is_not_there(tmp_path: Path) -> None:
    text = await _refusal(LaunchOptions(model=str(tmp_path / "no-such-folder")))
    assert "no such folder" in text
    assert "no-such-folder" in text


async def test_a_taken_http_port_shows_before_the_engine_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = await _refusal(LaunchOptions(http=address_of(taken)))
    assert "--http" in text


async def test_an_engine_process_that_dies_at_its_start_is_named_with_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in embedded_model.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    # Passes the frontend's checks: only the process that loads the weights finds out.
    folder = tmp_path / "model"
    shutil.copytree(embedded_model.prepare(), folder)
    os.truncate(folder / "model.safetensors", 1 << 20)
    arguments = ("--dtype", "float32", "--max-model-len", "256", "--enforce-eager")
    text = await _refusal(LaunchOptions(model=str(folder), vllm_arguments=arguments))
    assert "SafetensorError" in text


async def test_a_missing_seam_stops_a_patched_start_before_anything_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = Seam("vllm.v1.engine.core", "EngineCore.no_such_method", SeamKind.FUNCTION)
    family = bindings.bind_installed().family
    changed = bindings.Family(
        name=family.name,
        versions=family.versions,
        tested=family.tested,
        probes=family.probes,
        hooks=family.hooks,
        relied_on=(*family.relied_on, gone),
    )
    monkeypatch.setattr(bindings, "FAMILIES", (changed,))
    with anyio.fail_after(120), pytest.raises(UnsupportedVllm) as refusal:
        async with launch(LaunchOptions(patch=True)):
            pass
    text = str(refusal.value)
    assert str(gone) in text
    assert "tested on a real engine" in text
    assert refusal.value.exit_code == 4
    assert not install.status().active
