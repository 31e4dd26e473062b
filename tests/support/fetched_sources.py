"""The source of a vLLM version for a test, fetched where it is missing."""

from pathlib import Path

import pytest

from tools import steps
from tools.steps import SetupError
from tools.vllm_sources import fetch

MAY_FETCH = pytest.mark.timeout(2 * steps.WHEEL_LIMIT_S + 60)
"""For tests that ask for a source: one may download it, or wait for another process that does."""


def source_of(version: str) -> Path:
    """The `vllm` package folder of a version; fails the test, with what to do, without it."""
    try:
        return fetch(version)
    except SetupError as missing:
        pytest.fail(f"no source of vLLM {version} to check against: {missing}", pytrace=False)
