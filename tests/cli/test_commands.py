"""The command line as a user meets it: forms, streams and exit codes (design, section 5)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from nnrp_sched.cli import COMMANDS
from nnrp_sched.client import connect
from nnrp_sched.errors import PeerUnreachable
from tests.support.serving import script

SECONDS = 30


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "nnrp_sched", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **environment},
    )


@contextmanager
def serving(*arguments: str, **environment: str) -> Generator[tuple["subprocess.Popen[str]", Any]]:
    """A scripted server as a child process, and its readiness line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nnrp_sched", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a running scripted server."""
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        yield ready["endpoints"][0]


def test_the_readiness_line_is_one_json_object_with_the_bound_addresses(tmp_path: Any) -> None:
    path = tmp_path / "nnrp.sock"
    with serving("--listen", "nnrp://127.0.0.1:0", "--listen", f"unix://{path}") as (_, ready):
        assert ready["ready"] is True
        assert set(ready) == {
            "ready",
            "endpoints",
            "http",
            "model",
            "vllm",
            "binding",
            "patched",
        }
        tcp, unix = ready["endpoints"]
        assert not tcp.endswith(":0")
        assert run("chat", "hello", "--endpoint", unix).returncode == 0
        assert run("chat", "hello", "--endpoint", tcp).returncode == 0


def test_chat_prints_the_answer_and_nothing_else(endpoint: str) -> None:
    done = run("chat", "hello there", "--endpoint", endpoint)
    assert done.returncode == 0
    assert done.stdout == "You said: hello there\n"
    assert done.stderr == ""


def test_chat_without_streaming_prints_the_same_answer(endpoint: str) -> None:
    done = run("chat", "hello there", "--endpoint", endpoint, "--no-stream")
    assert done.stdout == "You said: hello there\n"


def test_chat_json_prints_the_whole_outcome(endpoint: str) -> None:
    done = run("chat", "hello", "--endpoint", endpoint, "--json")
    outcome = json.loads(done.stdout)
    assert outcome["status"] == "completed"
    assert outcome["text"] == "You said: hello"
    assert outcome["usage"]["total_tokens"] > 0


def test_a_chat_that_the_server_refuses_exits_with_1_and_says_why(endpoint: str) -> None:
    done = run("chat", "hello", "--endpoint", endpoint, "--model", "nobody")
    assert done.returncode == 1
    assert "nobody" in done.stderr
    assert done.stdout.strip() == ""


def test_a_chat_over_its_timeout_exits_with_1(endpoint: str) -> None:
    done = run("chat", "a long answer please", "--endpoint", endpoint, "--timeout", "0.1")
    assert done.returncode == 1
    assert "timeout_ms" in done.stderr


def test_an_unreachable_server_exits_with_5_and_names_the_address(tmp_path: Any) -> None:
    done = run("chat", "hello", "--endpoint", f"unix://{tmp_path}/nobody.sock")
    assert done.returncode == 5
    assert "nobody.sock" in done.stderr
    assert "nnrp-sched run" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_endpoint_that_is_none_exits_with_2() -> None:
    done = run("chat", "hello", "--endpoint", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert "http" in done.stderr


def test_a_model_without_its_flag_exits_with_2_and_names_the_flag() -> None:
    for arguments in (("some/model",), ("--", "some/model", "--enforce-eager")):
        done = run("run", "--patch-vllm", *arguments)
        assert done.returncode == 2
        assert "some/model" in done.stderr
        assert "--model" in done.stderr


def test_an_unknown_flag_exits_with_2() -> None:
    assert run("chat", "--surprise").returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("hello", "--timeout", "nan"),
        ("hello", "--timeout", "inf"),
        ("hello", "--temperature", "nan"),
        ("\udcff",),
        ("hello", "--system", "\udcff"),
        ("hello", "--model", "\udcff"),
        ("hello", "--endpoint", "nnrp://a..b:1"),
    ],
)
def test_a_value_that_cannot_be_sent_exits_with_2_and_without_a_traceback(
    arguments: tuple[str, ...],
) -> None:
    done = run("chat", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_second_address_that_cannot_be_had_exits_with_3_and_names_it(tmp_path: Any) -> None:
    absent = f"unix://{tmp_path}/absent/b.sock"
    done = run("serve", "--listen", f"unix://{tmp_path}/a.sock", "--listen", absent)
    assert done.returncode == 3
    assert absent in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_address_in_use_exits_with_3_and_names_it(endpoint: str) -> None:
    done = run("serve", "--listen", endpoint)
    assert done.returncode == 3
    assert endpoint.rsplit(":", 1)[1] in done.stderr
    assert done.stdout == ""


def test_capabilities_prints_the_document_of_the_server(endpoint: str) -> None:
    document = json.loads(run("capabilities", "--endpoint", endpoint).stdout)
    assert document["profile"] == "openai-compatible"
    assert document["compatibility_levels"] == [1]
    assert "example-model" in [model["id"] for model in document["models"]]


def test_the_variable_of_a_flag_has_its_name_whatever_the_parameter_is_called(
    endpoint: str,
) -> None:
    variables = {"NNRP_SCHED_CHAT_JSON": "1", "NNRP_SCHED_CHAT_TIMEOUT": "0.1"}
    done = run("chat", "a long answer please", "--endpoint", endpoint, **variables)
    assert json.loads(done.stdout)["error"]["code"] == "request_timeout"
    assert json.loads(run("doctor", NNRP_SCHED_DOCTOR_JSON="1").stdout)["versions"]


def test_flags_can_be_set_by_variables(endpoint: str) -> None:
    done = run("chat", "hello", NNRP_SCHED_CHAT_ENDPOINT=endpoint)
    assert done.stdout == "You said: hello\n"


@pytest.mark.anyio
async def test_sigterm_lets_running_chats_finish_and_exits_with_0() -> None:
    with serving("--listen", "nnrp://127.0.0.1:0") as (process, ready):
        endpoint = ready["endpoints"][0]
        async with connect(endpoint) as connection, connection.session() as session:
            words = [f"{number} " for number in range(100)]
            chat = session.chat(script(text=words, delay_ms=10), stream=True)
            await anext(chat)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(SECONDS):
                await until_unreachable(endpoint)
                outcome = await chat.result()
        assert outcome.status == "completed"
        assert outcome.text == "".join(words)
        assert process.wait(SECONDS) == 0


@pytest.mark.anyio
async def test_a_second_sigterm_ends_running_chats_at_once() -> None:
    with serving("--listen", "nnrp://127.0.0.1:0") as (process, ready):
        endpoint = ready["endpoints"][0]
        async with connect(endpoint) as connection, connection.session() as session:
            chat = session.chat(script(text="x", hold=True), stream=True)
            await anext(chat)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(SECONDS):
                await until_unreachable(endpoint)  # The first signal was taken.
                process.send_signal(signal.SIGTERM)
                outcome = await chat.result()
        assert outcome.status == "dropped"
        assert outcome.reason == "server_shutdown"
        assert process.wait(SECONDS) == 0


async def until_unreachable(endpoint: str) -> None:
    """Wait until a draining server has closed its listener."""
    while True:
        try:
            async with connect(endpoint):
                pass
        except PeerUnreachable:
            return


def test_help_does_not_import_what_it_does_not_need() -> None:
    code = (
        "import sys; from nnrp_sched.cli import root\n"
        "try: root.main(['--help'], standalone_mode=False)\n"
        "finally: print(sorted({'anyio', 'msgspec', 'wrapt', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert "demo" in done.stdout
    assert done.stdout.strip().endswith("[]")


@pytest.mark.parametrize("command", list(COMMANDS))
def test_each_command_has_help(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert "Usage: nnrp-sched" in done.stdout


def test_doctor_prints_versions_checks_and_the_environment() -> None:
    done = run("doctor", "--json", NNRP_SCHED_PATCH="1", VLLM_PLUGINS="other")
    report = json.loads(done.stdout)
    assert report["versions"]["python"]
    environment = {entry["name"]: entry for entry in report["environment"]}
    assert environment["NNRP_SCHED_PATCH"]["source"] == "environment"
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["VLLM_PLUGINS"]["status"] == "warning"
    assert "nnrp_sched" in checks["VLLM_PLUGINS"]["advice"]
    assert done.returncode == (0 if report["ok"] else 1)


def test_doctor_says_for_people_and_programs_alike_what_to_do() -> None:
    arguments = ("doctor", "--scheduler-cls", "collections.OrderedDict")
    variables = {"VLLM_PLUGINS": "other", "VLLM_USE_RUST_FRONTEND": "1"}
    told = run(*arguments, **variables)
    report = json.loads(run(*arguments, "--json", **variables).stdout)
    checks = {check["name"]: check for check in report["checks"]}
    for name in ("VLLM_PLUGINS", "frontend", "scheduler"):
        assert checks[name]["status"] != "ok"
        assert checks[name]["found"] in told.stdout
        assert f"→ {checks[name]['advice']}" in told.stdout
    assert "OrderedDict is not derived from" in checks["scheduler"]["found"]
    assert told.returncode == 1
