"""docs/control.md says what is so."""

import re
from pathlib import Path

import pytest

from nnrp_sched.server import ServerLimits
from nnrp_sched.wire import CapabilityToken
from tests.support.pages import page, printed_by_example

PAGE = page("control.md")


def test_the_example_runs(tmp_path: Path) -> None:
    printed = printed_by_example(PAGE, tmp_path)
    assert "control.progress_partial" in printed
    assert "PRODUCING_PARTIAL" in printed
    assert "completed" in printed


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
