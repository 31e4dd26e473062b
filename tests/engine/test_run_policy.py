"""`run --patch-vllm` says how it has vLLM's queue ordered; the engine itself never starts here."""

import subprocess
import sys

import pytest

SECONDS = 120
NOWHERE = "192.0.2.1:8000"
"""Nobody's address: the start fails there, before the engine's."""


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """`nnrp-sched run` that fails on its HTTP address."""
    return subprocess.run(
        [sys.executable, "-m", "nnrp_sched", "run", "--http", NOWHERE, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--patch-vllm",), True),
        (("--patch-vllm", "--", "--max-model-len", "64"), True),
        (("--patch-vllm", "--", "--scheduling-policy", "fcfs"), False),
        ((), False),
    ],
)
def test_the_policy_is_told_when_nobody_else_chose_one(
    arguments: tuple[str, ...], told: bool
) -> None:
    done = run(*arguments)
    assert done.returncode == 3
    assert done.stdout == ""
    assert ("--scheduling-policy priority" in done.stderr) is told
