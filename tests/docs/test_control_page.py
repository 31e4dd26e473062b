"""docs/control.md says what is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nnrp_sched.server import ServerLimits
from nnrp_sched.wire import CapabilityToken
from tests.cli.test_commands import SECONDS, serving

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "control.md").read_text()


def test_the_example_runs(tmp_path: Path) -> None:
    ((source),) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        script = tmp_path / "example.py"
        script.write_text(source.replace("nnrp://127.0.0.1:7437", ready["endpoints"][0]))
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    assert "control.progress_partial" in done.stdout
    assert "PRODUCING_PARTIAL" in done.stdout
    assert "completed" in done.stdout


def test_the_page_names_every_capability_and_no_other() -> None:
    named = re.findall(r"`(control\.\w+)`", PAGE)
    assert sorted(named) == sorted(CapabilityToken)


@pytest.mark.parametrize("name", ["send_queue_bytes", "operation_queue_bytes"])
def test_the_bounds_are_the_servers(name: str) -> None:
    assert getattr(ServerLimits(), name) == 256 * 1024
    assert ServerLimits().slow_reader_seconds == 10
    assert "256 KiB" in PAGE
    assert "10 seconds" in PAGE


def test_the_bounds_of_keys_are_the_servers() -> None:
    limits, text = ServerLimits(), " ".join(PAGE.split())
    mebibyte = 1024 * 1024
    assert (limits.key_seconds, limits.key_grace_seconds) == (60, 2)
    assert "within the last 60 seconds" in text
    assert "goes on for 2 seconds" in text
    assert f"{limits.max_keys_per_principal} keys of one principal" in text
    assert f"{limits.max_keys} in all" in text
    assert f"{limits.key_answer_bytes // mebibyte} MiB of one answer" in text
    assert f"{limits.key_bytes_per_principal // mebibyte} MiB of a principal's" in text
    assert f"{limits.key_bytes // mebibyte} MiB of all" in text
