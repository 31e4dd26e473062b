"""Where a server's operations can be watched: its log, and a port for metrics when asked for."""

import json
import urllib.request

import pytest

from tests.cli.test_commands import run, serving


def test_metrics_have_a_port_of_their_own_only_when_it_is_asked_for() -> None:
    arguments = ("--listen", "nnrp://127.0.0.1:0", "--metrics", "127.0.0.1:0")
    with serving(*arguments) as (_, ready):
        assert run("chat", "hello", "--endpoint", ready["endpoints"][0]).returncode == 0
        with urllib.request.urlopen(ready["metrics"], timeout=10) as answer:
            text = answer.read().decode()
    assert 'outcome="completed"' in text
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        assert "metrics" not in ready


@pytest.mark.parametrize("address", ["9100", "host:", ":9100", "127.0.0.1:70000", "127.0.0.1:x"])
def test_an_address_for_metrics_that_is_none_is_refused(address: str) -> None:
    done = run("serve", "--metrics", address)
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr


def test_each_operation_is_a_line_in_the_log(tmp_path: object) -> None:
    variables = {"NNRP_SCHED_LOG_LEVEL": "info", "NNRP_SCHED_LOG_FORMAT": "json"}
    with serving("--listen", "nnrp://127.0.0.1:0", **variables) as (process, ready):
        assert run("chat", "a-secret-prompt", "--endpoint", ready["endpoints"][0]).returncode == 0
        process.terminate()
        _, stderr = process.communicate(timeout=30)
    (entry,) = [
        entry
        for entry in map(json.loads, stderr.splitlines())
        if entry["message"] == "nnrp_operation_observation"
    ]
    assert entry["observation"]["terminal_outcome"] == "completed"
    assert "a-secret-prompt" not in stderr
