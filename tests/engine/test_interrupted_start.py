"""A signal while vLLM starts ends everything at once, not when the engine is up."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SECONDS = 120
ENGINE_STARTS = "Initializing a V1 LLM engine"
"""What the engine process logs before it loads the model."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_ends_every_process(
    number: signal.Signals, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    arguments = ("--patch-vllm", "--listen", "nnrp://127.0.0.1:0", "--http", "off")
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "nnrp_sched", "run", *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + SECONDS
        while ENGINE_STARTS not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        # A terminal's Ctrl-C goes to all processes; SIGTERM goes to the one that was started.
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        ready, _ = process.communicate(timeout=30)
        assert process.returncode == 128 + number, log.read_text()
        assert ready == b""
        with pytest.raises(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(process.pid, 0)
                time.sleep(0.1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
