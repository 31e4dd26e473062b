"""The pieces of a launch that need no engine: environment, addresses, error log, early refusals."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nnrp_sched.errors import EndpointError, StartError, UnsupportedVllm
from nnrp_sched_patches import child_environment, launch
from nnrp_sched_patches.child_environment import applied, patch_variables
from nnrp_sched_patches.engine_errors import EngineErrors
from nnrp_sched_patches.http_server import address_of, bind_socket, parse_address
from nnrp_sched_patches.launch import LaunchOptions
from nnrp_sched_patches.launch_steps import start_failures
from nnrp_sched_patches.version import InstalledVllm
from tests.support.vllm_source import write_source

_CONFIG: dict[str, Any] = {
    "formatters": {"vllm": {}},
    "handlers": {"vllm": {}},
    "loggers": {"vllm": {"handlers": ["vllm"]}},
}


def _points(*names: str) -> Callable[[str], SimpleNamespace]:
    def entry_points(group: str) -> SimpleNamespace:
        return SimpleNamespace(names={*names})

    return entry_points


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_PLUGINS", "VLLM_USE_RUST_FRONTEND", "VLLM_LOGGING_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(child_environment, "entry_points", _points("nnrp_sched"))


def test_only_the_gate_is_set_where_all_plugins_are_allowed() -> None:
    assert patch_variables() == {"NNRP_SCHED_PATCH": "1"}


@pytest.mark.parametrize(
    ("allowed", "extended"),
    [("", "nnrp_sched"), ("other", "other,nnrp_sched"), ("a,b", "a,b,nnrp_sched")],
)
def test_a_list_of_plugins_that_hides_us_is_extended_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    allowed: str,
    extended: str,
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", allowed)
    assert patch_variables()["VLLM_PLUGINS"] == extended
    assert "VLLM_PLUGINS" in caplog.text


def test_a_list_of_plugins_that_names_us_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other,nnrp_sched")
    assert "VLLM_PLUGINS" not in patch_variables()


def test_the_rust_frontend_cannot_be_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    with pytest.raises(UnsupportedVllm, match="VLLM_USE_RUST_FRONTEND"):
        patch_variables()


def test_a_package_without_its_entry_point_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_environment, "entry_points", _points())
    with pytest.raises(StartError, match="entry point"):
        patch_variables()


def test_the_environment_is_put_back_and_defaults_yield_to_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NNRP_TEST_FORCED", "before")
    monkeypatch.setenv("NNRP_TEST_USER", "theirs")
    defaults = {"NNRP_TEST_USER": "ours", "NNRP_TEST_NEW": "new"}
    with pytest.raises(RuntimeError), applied({"NNRP_TEST_FORCED": "during"}, defaults):
        assert os.environ["NNRP_TEST_FORCED"] == "during"
        assert os.environ["NNRP_TEST_USER"] == "theirs"
        assert os.environ["NNRP_TEST_NEW"] == "new"
        raise RuntimeError
    assert os.environ["NNRP_TEST_FORCED"] == "before"
    assert os.environ["NNRP_TEST_USER"] == "theirs"
    assert "NNRP_TEST_NEW" not in os.environ


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_http_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "8000", "host:", ":80", "host:http", "host:70000", "host:-1"])
def test_a_text_that_is_no_http_address_is_refused(text: str) -> None:
    with pytest.raises(EndpointError, match="host:port"):
        parse_address(text)


def test_port_0_gets_a_free_port_that_is_told() -> None:
    with bind_socket("127.0.0.1:0") as bound:
        host, port = parse_address(address_of(bound))
    assert host == "127.0.0.1"
    assert port > 0


def test_a_taken_port_is_told_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = address_of(taken)
        with pytest.raises(StartError, match="--http"):
            bind_socket(address)


def test_a_host_that_is_not_ours_is_told() -> None:
    with pytest.raises(StartError, match=r"192\.0\.2\.1:80"):
        bind_socket("192.0.2.1:80")


def test_the_last_exception_that_vllm_logged_is_the_reason(tmp_path: Path) -> None:
    errors = EngineErrors(tmp_path)
    (path,) = errors.variables(_CONFIG, ()).values()
    handler = json.loads(Path(path).read_text())["handlers"]["nnrp_sched_errors"]
    Path(handler["filename"]).write_text(
        "EngineCore failed to start.\nTraceback (most recent call last):\n  File ...\n"
        "torch.OutOfMemoryError: no memory\n\nshutting down\n"
        "Exception: WorkerProc initialization failed. See stack trace for root cause.\n"
    )
    assert errors.last() == "torch.OutOfMemoryError: no memory"


def test_without_a_logged_error_there_is_no_reason(tmp_path: Path) -> None:
    assert EngineErrors(tmp_path).last() is None


def test_vllms_own_logging_configuration_stays_as_it_is(tmp_path: Path) -> None:
    EngineErrors(tmp_path).variables(_CONFIG, ())
    assert _CONFIG["loggers"] == {"vllm": {"handlers": ["vllm"]}}


@pytest.mark.parametrize(
    "arguments", [("--log-level", "DEBUG"), ("--logging-config={}",), ("--log-config-file", "x")]
)
def test_a_user_who_configures_logging_is_not_overruled(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert EngineErrors(tmp_path).variables(_CONFIG, arguments) == {}


def test_a_failed_start_names_the_engines_own_error(tmp_path: Path) -> None:
    errors = EngineErrors(tmp_path)
    errors.variables(_CONFIG, ())
    (tmp_path / "errors.log").write_text("ValueError: the model is too long\n")
    with (
        pytest.raises(StartError, match="the model is too long") as failure,
        start_failures(errors, "some/model"),
    ):
        raise RuntimeError("Engine core initialization failed.")
    assert "Engine core initialization failed." in str(failure.value)


@pytest.mark.anyio
async def test_without_vllm_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "installed_vllm", lambda: None)
    with pytest.raises(StartError, match=r"make\s+setup"):
        async with launch.launch(LaunchOptions()):
            pass


@pytest.mark.anyio
async def test_a_vllm_that_cannot_serve_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = write_source(tmp_path / "vllm", [])
    found = InstalledVllm(root=root, version="0.9.0")
    monkeypatch.setattr(launch, "installed_vllm", lambda: found)
    with pytest.raises(UnsupportedVllm, match=r"0\.9\.0 cannot serve chats"):
        async with launch.launch(LaunchOptions()):
            pass
