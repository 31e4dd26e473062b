"""The soak, for a few seconds; `make soak` runs it for ten minutes."""

import logging
from pathlib import Path

import pytest

from tests.soak.traffic import soak

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def test_healthy_clients_are_served_rightly_beside_misbehaving_ones(
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.ERROR, "nnrp_sched")
    report = await soak(6.0, 7, tmp_path)
    assert report.left == []
    assert report.tasks[1] <= report.tasks[0]
    assert report.healthy > 20
    assert sum(report.ways.values()) > 20
    assert len(report.ways) >= 5
